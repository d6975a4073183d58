"""Sampling of tokens from logits: greedy, temperature, top-k, top-p and min-p; pure functions, independent
rows.
"""

import zlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.shapes import Array, Bool, Float, Int


@struct.dataclass
class Sampling:
  """The sampling settings, each one number or one per row [B]. All are traced: changing a value does not
  recompile.

  They apply in the order of `transformers`: penalty, temperature, top-k, top-p, min-p.

  Attributes:
    temperature: divides the logits; 0: the most likely token.
    top_k: only the k most likely tokens (Fan et al. 2018, §5); 0: all.
    top_p: only the smallest set of most likely tokens with at least this total probability (Holtzman et
      al. 2020, §3.1), after temperature and top-k; 1: all.
    min_p: only tokens with at least this fraction of the greatest probability, after temperature
      (Nguyen et al. 2024, §3); 0: all.
    repetition_penalty: divides positive logits, and multiplies negative logits, of tokens that occur in the
      prompt or the new tokens (Keskar et al. 2019, §4.1); also in greedy decoding; 1: none.
  """

  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repetition_penalty: float = 1.0

  def validate(self) -> None:
    """Raises ValueError for a setting outside its range."""
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
  """A key [B] for each row, from the seed, the tokens of its prompt and its sample number.

  The key does not depend on the row index, so that other rows do not change a row, and different prompts have
  independent keys.
  """
  hashes = np.array([zlib.crc32(np.asarray(prompt, '<i4').tobytes()) for prompt in prompts], np.uint32)
  fold = jax.vmap(jax.random.fold_in)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), hashes)
  return fold(keys, np.array(samples, np.uint32))


def find_prompt_tokens(prompts: Sequence[np.ndarray], rows: int, vocab: int) -> Bool[np.ndarray, 'B V']:
  """The tokens that occur in each prompt; False in rows beyond the prompts."""
  seen = np.zeros((rows, vocab), bool)
  for row, prompt in zip(seen, prompts):
    row[prompt] = True
  return seen


def sample_tokens(
  logits: Float[Array, 'B V'],
  keys: Array,
  positions: Int[Array, 'B'],
  sampling: Sampling,
  seen: Bool[Array, 'B V'] | None = None,
) -> Int[Array, 'B']:
  """Samples the token of each row at its position; V if the logits of a row are NaN.

  Uses the Gumbel trick, argmax(logits / temperature + noise). The noise depends on the row's key and position
  only, not on other rows or the number of loop steps.

  Args:
    seen: tokens to which the repetition penalty applies; None: no penalty.
  """
  if seen is not None:
    logits = penalize_repetition(logits, seen, by_row(sampling.repetition_penalty))

  def draw():
    noise = jax.vmap(
      lambda key, position: jax.random.gumbel(jax.random.fold_in(key, position), logits.shape[-1:])
    )(keys, positions)
    return jnp.where(is_drawn, transform_logits(logits, sampling) + noise, logits)

  # Greedy decoding skips noise and filters.
  is_drawn = by_row(sampling.temperature) > 0
  return first_argmax(jax.lax.cond(is_drawn.any(), draw, lambda: logits))


def by_row(setting: Float[Array, '*B']) -> Float[Array, 'B 1']:
  """A setting as a column, [1 1] if it is one number for all rows."""
  return jnp.reshape(setting, (-1, 1))


def first_argmax(logits: Float[Array, 'B V']) -> Int[Array, 'B']:
  """argmax (the first maximum), five times as fast as `jnp.argmax` on a CPU; V if there is a NaN."""
  tokens = jnp.arange(logits.shape[-1], dtype=jnp.int32)
  return jnp.where(logits == logits.max(-1, keepdims=True), tokens[None], len(tokens)).min(-1)


def penalize_repetition(
  logits: Float[Array, 'B V'], seen: Bool[Array, 'B V'], penalty: Float[Array, 'B 1']
) -> Float[Array, 'B V']:
  """Lowers the logits of `seen` tokens by the repetition penalty."""
  return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def transform_logits(logits: Float[Array, 'B V'], sampling: Sampling) -> Float[Array, 'B V']:
  """The logits to sample from, shifted to a maximum of 0, after temperature and filters."""
  # With a maximum of 0 no temperature overflows float32.
  temperature = jnp.maximum(by_row(sampling.temperature), np.finfo(np.float32).tiny)
  scaled = (logits - logits.max(-1, keepdims=True)) / temperature
  return filter_logits(scaled, sampling.top_k, sampling.top_p, sampling.min_p)


def filter_logits(
  logits: Float[Array, 'B V'], top_k: Int[Array, '*B'], top_p: Float[Array, '*B'], min_p: Float[Array, '*B']
) -> Float[Array, 'B V']:
  """Sets to -inf the logits that top-k, then top-p among the rest, then min-p exclude."""
  top_k, top_p, min_p = map(by_row, (top_k, top_p, min_p))

  def keep(x: Array, is_filtered: Array, weights: Callable, target: Array) -> Array:
    """x of the leading tokens in the rows that are filtered; costs nothing if there are none."""
    return jax.lax.cond(
      is_filtered.any(),
      lambda: jnp.where(select_leading(x, weights(x), target) | ~is_filtered, x, -jnp.inf),
      lambda: x,
    )

  x = keep(logits, top_k > 0, jnp.ones_like, top_k)
  x = keep(x, top_p < 1, jax.nn.softmax, top_p)
  # p < min_p · max p, in logits; NaN stays, so that the caller detects it.
  return jnp.where(x < x.max(-1, keepdims=True) + jnp.log(min_p), -jnp.inf, x)


def select_leading(
  logits: Float[Array, 'B V'], weights: Float[Array, 'B V'], target: Float[Array, 'B 1']
) -> Bool[Array, 'B V']:
  """The smallest set of most likely tokens whose weights sum to `target`.

  Equal logits are ordered by token id, as in argmax. Sorting would cost more than the model's step; instead,
  the threshold is determined bit by bit, in 32 sums.
  """
  order = to_ordered_bits(logits)

  def set_bit(i, threshold):
    raised = threshold | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
    is_enough = jnp.where(order >= raised, weights, 0).sum(-1, keepdims=True) >= target
    return jnp.where(is_enough, raised, threshold)

  threshold = jax.lax.fori_loop(0, 32, set_bit, jnp.zeros((len(logits), 1), jnp.uint32))
  above, tied = order > threshold, jnp.where(order == threshold, weights, 0)
  before = jnp.where(above, weights, 0).sum(-1, keepdims=True) + jnp.cumsum(tied, -1) - tied
  return above | ((order == threshold) & (before < target))


def to_ordered_bits(x: Float[Array, '*N']) -> Int[Array, '*N']:
  """float32 → uint32 in the same order: flips all bits of negative numbers, and the sign bit of others."""
  bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32) + 0.0, jnp.uint32)  # + 0.0: -0 is 0
  return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))
