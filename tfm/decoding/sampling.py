"""From logits to a token: greedy, or by temperature, top-k, top-p and min-p; pure functions, each row for itself."""

import zlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.shapes import Array, Bool, Float, Int


@struct.dataclass
class Sampling:
  """How the next token is chosen. All settings are traced: changing them compiles nothing.

  They come in the order that `transformers` has: penalty, temperature, top-k, top-p, min-p.

  Attributes:
    temperature: divides the logits; 0 takes the likeliest token.
    top_k: only the k likeliest tokens (Fan et al. 2018, §5); 0: all.
    top_p: only the fewest likeliest tokens that hold this probability together (Holtzman et al.
      2020, §3.1), after temperature and top-k; 1: all.
    min_p: only tokens with at least this share of the greatest probability, after temperature (Nguyen
      et al. 2024, §3); 0: all.
    repetition_penalty: logits of tokens that are there already, in the prompt too, are divided by it where
      positive and multiplied where negative (Keskar et al. 2019, §4.1); of greedy decoding too; 1: none.
  """

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0

  def check(self) -> None:
    """Raises ValueError for a setting outside of its range."""
    if not 0 <= self.temperature < float('inf'):
      raise ValueError(f'temperature={self.temperature} must be 0 (greedy) or more')
    if self.top_k < 0:
      raise ValueError(f'top_k={self.top_k} must be 0 (all tokens) or more')
    if not 0 < self.top_p <= 1:
      raise ValueError(f'top_p={self.top_p} must lie in (0, 1]; 1 is all tokens')
    if not 0 <= self.min_p <= 1:
      raise ValueError(f'min_p={self.min_p} must lie in [0, 1]; 0 is all tokens')
    if not 0 < self.repetition_penalty < float('inf'):
      raise ValueError(f'repetition_penalty={self.repetition_penalty} must be above 0; 1 is none')


def row_keys(seed: int, prompts: Sequence[np.ndarray], samples: Sequence[int]) -> Array:
  """A key [B] for each row: of the seed, its prompt's tokens and its sample number.

  Not of its place: a prompt goes on as it would alone, whatever stands beside it, and yet two
  prompts do not share their luck.
  """
  hashes = np.array([zlib.crc32(np.asarray(prompt, '<i4').tobytes()) for prompt in prompts], np.uint32)
  fold = jax.vmap(jax.random.fold_in)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), hashes)
  return fold(keys, np.array(samples, np.uint32))


def present(prompts: Sequence[np.ndarray], rows: int, vocab: int) -> Bool[np.ndarray, 'B V']:
  """Which tokens each prompt holds; none in the rows beyond the prompts."""
  seen = np.zeros((rows, vocab), bool)
  for row, prompt in zip(seen, prompts):
    row[prompt] = True
  return seen


def sample(
  logits: Float[Array, 'B V'],
  keys: Array,
  positions: Int[Array, 'B'],
  sampling: Sampling,
  seen: Bool[Array, 'B V'] | None = None,
) -> Int[Array, 'B']:
  """The token that each row has at its position; V where its logits are not numbers.

  Drawn by the Gumbel trick, argmax(logits / temperature + noise), with the noise of the row's own
  key and position: neither the other rows nor the steps of a loop have a part in it.

  Args:
    seen: the tokens that the repetition penalty is for; None: it is 1.
  """
  if seen is not None:
    logits = penalized(logits, seen, sampling.repetition_penalty)

  def draw():
    noise = jax.vmap(
      lambda key, position: jax.random.gumbel(jax.random.fold_in(key, position), logits.shape[-1:])
    )(keys, positions)
    return warmed(logits, sampling) + noise

  # Greedy needs neither noise nor filters, and pays for none.
  return likeliest(jax.lax.cond(sampling.temperature > 0, draw, lambda: logits))


def likeliest(logits: Float[Array, 'B V']) -> Int[Array, 'B']:
  """The first of the greatest, as argmax, which is five times as slow on a CPU; V if there is a NaN."""
  tokens = jnp.arange(logits.shape[-1], dtype=jnp.int32)
  return jnp.where(logits == logits.max(-1, keepdims=True), tokens[None], len(tokens)).min(-1)


def penalized(
  logits: Float[Array, 'B V'], seen: Bool[Array, 'B V'], penalty: Float[Array, '']
) -> Float[Array, 'B V']:
  """The logits, lower by the penalty where `seen`, whatever their sign."""
  return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def warmed(logits: Float[Array, 'B V'], sampling: Sampling) -> Float[Array, 'B V']:
  """The logits to draw from, the greatest 0: by temperature, and without what the filters leave out."""
  # With the likeliest at 0 no temperature is too low for a float32.
  heat = jnp.maximum(sampling.temperature, np.finfo(np.float32).tiny)
  scaled = (logits - logits.max(-1, keepdims=True)) / heat
  return filtered(scaled, sampling.top_k, sampling.top_p, sampling.min_p)


def filtered(
  logits: Float[Array, 'B V'], top_k: Int[Array, ''], top_p: Float[Array, ''], min_p: Float[Array, '']
) -> Float[Array, 'B V']:
  """-inf in place of the logits that top-k, then top-p among the rest, and then min-p leave out."""

  def only(weights: Callable, target: Array) -> Callable:
    return lambda x: jnp.where(leading(x, weights(x), target), x, -jnp.inf)

  x = jax.lax.cond(top_k > 0, only(jnp.ones_like, top_k), lambda x: x, logits)
  x = jax.lax.cond(top_p < 1, only(jax.nn.softmax, top_p), lambda x: x, x)
  # p < min_p · max p, in logits; what is not a number stays, to be told.
  return jnp.where(x < x.max(-1, keepdims=True) + jnp.log(min_p), -jnp.inf, x)


def leading(
  logits: Float[Array, 'B V'], weights: Float[Array, 'B V'], target: Float[Array, '']
) -> Bool[Array, 'B V']:
  """The fewest tokens, from the likeliest down, whose weights sum to `target`.

  Equal logits stand in the order of the vocabulary, as for argmax. Sorting would cost more than the
  model's own step: instead the least logit let in is found bit by bit, in 32 sums.
  """
  order = ordered(logits)

  def lower(i, least):
    raised = least | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
    reached = jnp.where(order >= raised, weights, 0).sum(-1, keepdims=True) >= target
    return jnp.where(reached, raised, least)

  least = jax.lax.fori_loop(0, 32, lower, jnp.zeros((len(logits), 1), jnp.uint32))
  above, tied = order > least, jnp.where(order == least, weights, 0)
  before = jnp.where(above, weights, 0).sum(-1, keepdims=True) + jnp.cumsum(tied, -1) - tied
  return above | ((order == least) & (before < target))


def ordered(x: Float[Array, '*N']) -> Int[Array, '*N']:
  """float32 → uint32 in the same order: negative numbers have all bits turned, others the sign bit."""
  bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32) + 0.0, jnp.uint32)  # + 0.0: -0 is 0
  return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))
