"""Beam search: the hypotheses of highest score, kept side by side, over the caches of the one loop."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.decoding.loop import State, buckets, check, padded, prefill, remember
from tfm.mixers.protocol import Context
from tfm.models.decoder import Decoder
from tfm.shapes import Array, Float, Int, PyTree


class Hypothesis(NamedTuple):
  """What was written after the prompt, without its end, and log p over the penalty of its length."""

  tokens: np.ndarray
  score: float


@dataclasses.dataclass(frozen=True)
class Gnmt:
  """((5 + length) / 6)^α (Wu et al. 2016, eq. 14); α = 0.6 in Vaswani et al. 2017, §6.1."""

  alpha: float = 0.6

  def __call__(self, length):
    return ((5.0 + length) / 6.0) ** self.alpha


@dataclasses.dataclass(frozen=True)
class Power:
  """length^α, as T5 and `transformers` have it; 1: the mean log-probability of a token."""

  alpha: float = 1.0

  def __call__(self, length):
    return jnp.asarray(length, jnp.float32) ** self.alpha


# A penalty divides log p; the end of a hypothesis counts as one token.
PENALTIES = {'gnmt': Gnmt, 'power': Power}


@struct.dataclass
class Beams:
  """What the search hands on from token to token: K live hypotheses a row, and the K best ended ones.

  Attributes:
    state: of the loop, of B · K rows.
    step: tokens written.
    log_p: of the live ones; -inf for none. tokens: theirs, written so far.
    scores, ended, lengths: of the ended ones; -inf for none. A length leaves the end out.
  """

  state: State
  step: Int[Array, '']
  log_p: Float[Array, 'B K']
  tokens: Int[Array, 'B K L']
  scores: Float[Array, 'B K']
  ended: Int[Array, 'B K L']
  lengths: Int[Array, 'B K']


def search(
    model: Decoder, params: PyTree, prompts: Sequence[Sequence[int]], *, max_tokens: int | Sequence[int], eos: int,
    beams: int = 4, penalty: Callable = Gnmt(), sources: Sequence[Sequence[int]] | None = None,
    early_stopping: bool = False,
) -> list[list[Hypothesis]]:
  """The `beams` best hypotheses of every row, the best first; fewer where there are no more.

  score = log p(tokens, end | prompt) / penalty(tokens and end). A hypothesis of `max_tokens` tokens ends
  there without an end. A row goes on while a live hypothesis might still, at any length, score above the
  worst of its ended ones, so nothing is lost by stopping. One beam is greedy decoding. For scanned models
  see `unrolled`.

  Args:
    max_tokens: of a row, or of each.
    sources: as in `loop.generate`.
    early_stopping: a row stops instead as soon as `beams` hypotheses have ended, as in `transformers`.

  Raises:
    ValueError: for what `loop.check` refuses, a number of beams below 1, or logits that are not numbers.
  """
  if beams < 1:
    raise ValueError(f'beams={beams} must be at least 1')
  limits = np.broadcast_to(np.asarray(max_tokens, np.int32), len(prompts))
  check(model, prompts, int(limits.min(initial=1)), sources)
  check(model, prompts, int(limits.max()), sources)
  prompts = [np.asarray(prompt, np.int32) for prompt in prompts]
  memory = None
  if sources is not None:
    memory = remember(model, params, [np.asarray(source, np.int32) for source in sources])
    memory = jax.tree.map(lambda x: jnp.repeat(x, beams, 0), memory)
  most = buckets(int(limits.max()), 16)
  state = prefill(model, params, [prompt for prompt in prompts for _ in range(beams)], most, memory=memory,
                  rows=beams * padded(len(prompts)))
  limits = np.resize(limits, padded(len(prompts)))  # rows of padding are done, whatever their limit
  scores, tokens, lengths = jax.device_get(
    run(model, params, state, limits, eos, beams, penalty, most, early_stopping))
  if np.isnan(scores[:len(prompts)]).any():
    raise ValueError('the logits of the model are not numbers; its parameters are no use')
  return [[Hypothesis(t[:n], float(s)) for s, t, n in zip(*row) if s > -np.inf]
          for row in zip(scores[:len(prompts)], tokens, lengths)]


@functools.partial(jax.jit, static_argnums=(0, 5, 6, 7, 8))
def run(
    model: Decoder, params: PyTree, state: State, limits: Int[Array, 'B'], eos: int, beams: int, penalty: Callable,
    most: int, early_stopping: bool,
) -> tuple[Float[Array, 'B K'], Int[Array, 'B K L'], Int[Array, 'B K']]:
  """Scores, tokens and lengths of the best hypotheses, the best first; -inf where there are fewer."""
  K, B, V = beams, len(limits), model.vocab
  rows = jnp.arange(B)[:, None]

  def unfinished(found):  # [B]
    # log p only falls, and the penalty is monotone: the best that may still come has one of two lengths.
    first, last = (found.log_p[:, 0] / penalty(length) for length in (found.step + 1, limits))
    worst = found.scores[:, -1]
    hopeful = (found.step < limits) & (found.log_p[:, 0] > -jnp.inf)
    # One beam is greedy decoding: what ends first is all there is.
    better = worst == -jnp.inf if early_stopping or K == 1 else jnp.maximum(first, last) > worst
    return hopeful & better

  def step(found):
    state = found.state
    here = jnp.where(state.done, 0, 1)[:, None]
    context = Context(state.positions[:, None], here, jnp.zeros_like(here))
    logits, caches = model.apply({'params': params}, state.tokens[:, None], context, state.caches)
    log_p = found.log_p[:, :, None] + jax.nn.log_softmax(logits.reshape(B, K, V))
    bad = jnp.isnan(log_p).any()
    # Of so many, K at least have not ended: each live hypothesis has one end.
    log_p, which = jax.lax.top_k(log_p.reshape(B, K * V), min(2 * K, K * V))
    source, token = which // V, which % V
    ends = (token == eos) | (found.step + 1 >= limits)[:, None]

    written = found.tokens[rows, source].at[:, :, found.step].set(token)
    # An end counts where it is among the K likeliest continuations, and its row has not stopped before the others.
    counts = ends & (jnp.arange(log_p.shape[1]) < K)[None] & unfinished(found)[:, None]
    scores = jnp.concatenate([found.scores, jnp.where(counts, log_p / penalty(found.step + 1), -jnp.inf)], 1)
    scores, best = jax.lax.top_k(scores, K)
    ended = jnp.concatenate([found.ended, written], 1)[rows, best]
    lengths = jnp.concatenate([found.lengths, found.step + (token != eos)], 1)[rows, best]

    log_p, best = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_p), K)
    source, token = source[rows, best], token[rows, best]
    caches = model.stack().reordered(caches, (K * rows + source).reshape(-1))
    state = State(caches, token.reshape(-1), state.positions + here[:, 0], state.done)
    return Beams(state, found.step + 1, log_p, written[rows, best], jnp.where(bad, jnp.nan, scores), ended, lengths)

  none = jnp.full((B, K), -jnp.inf)
  blank = jnp.zeros((B, K, most), jnp.int32)
  # All hypotheses of a row begin alike, so one of them stands for all.
  alive = jnp.where(state.done.reshape(B, K) | (jnp.arange(K) > 0)[None], -jnp.inf, 0.0)
  found = Beams(state, jnp.int32(0), alive, blank, none, blank, jnp.zeros((B, K), jnp.int32))
  found = jax.lax.while_loop(lambda found: unfinished(found).any(), step, found)
  return found.scores, found.ended, found.lengths
