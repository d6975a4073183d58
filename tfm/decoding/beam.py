"""Beam search: the hypotheses of highest score, kept side by side, over the caches of the one loop."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.decoding.loop import State, buckets, check, padded, prefill, reading, remember
from tfm.mixers.protocol import Context
from tfm.models.decoder import Decoder
from tfm.shapes import Array, Bool, Float, Int, PyTree


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

# When a row stops: where no live hypothesis can become better than its worst ended one at any length, which is
# proven as log p only falls; where none would be if it ended now; or once as many have ended as there are beams.
# The last two are `early_stopping=False` and `True` of `transformers`, whose 'never' is the first.
STOPPING = ('proven', 'likely', 'first')

# Tokens that the caches have room for at first; twice as many whenever they are full. They are moved at every step.
ROOM = 31


@struct.dataclass
class Beams:
  """What the search hands on from token to token: K live hypotheses a row, and the K best ended ones.

  Attributes:
    state: of the loop, of B · K rows.
    step: tokens written.
    log_p: of the live ones; -inf for none. tokens: theirs, written so far.
    scores, ended, lengths: of the ended ones; -inf for none. A length leaves the end out.
    going: rows that had not stopped before the last step; what has stopped does not go on, whatever others do.
  """

  state: State
  step: Int[Array, '']
  log_p: Float[Array, 'B K']
  tokens: Int[Array, 'B K L']
  scores: Float[Array, 'B K']
  ended: Int[Array, 'B K L']
  lengths: Int[Array, 'B K']
  going: Bool[Array, 'B']


def search(
  model: Decoder,
  params: PyTree,
  prompts: Sequence[Sequence[int]],
  *,
  max_tokens: int | Sequence[int],
  eos: int,
  beams: int = 4,
  penalty: Callable = Gnmt(),
  sources: Sequence[Sequence[int]] | None = None,
  stopping: str = 'proven',
  room: int = ROOM,
) -> list[list[Hypothesis]]:
  """The `beams` best hypotheses of every row, the best first; fewer where there are no more.

  score = log p(tokens, end | prompt) / penalty(tokens and end). A hypothesis of `max_tokens` tokens ends
  there without an end. One beam is greedy decoding. For scanned models see `unrolled`.

  Args:
    max_tokens: of a row, or of each.
    sources: as in `loop.generate`.
    stopping: when a row stops, one of `STOPPING`; by 'proven' nothing is lost.
    room: tokens that the caches have room for at first.

  Raises:
    ValueError: for what `loop.check` refuses, a number of beams below 1, an unknown rule of stopping, or logits
      that are not numbers.
  """
  if beams < 1:
    raise ValueError(f'beams={beams} must be at least 1')
  if stopping not in STOPPING:
    raise ValueError(f'stopping={stopping!r} is not there; known: {", ".join(STOPPING)}')
  limits = np.broadcast_to(np.asarray(max_tokens, np.int32), len(prompts))
  check(model, prompts, int(limits.min(initial=1)), sources)
  check(model, prompts, int(limits.max()), sources)
  prompts = [np.asarray(prompt, np.int32) for prompt in prompts]
  memory = None
  if sources is not None:
    memory = remember(model, params, [np.asarray(source, np.int32) for source in sources])
    memory = jax.tree.map(lambda x: jnp.repeat(x, beams, 0), memory)
  most = buckets(int(limits.max()), 16)
  rows, until = beams * padded(len(prompts)), min(room, most)
  state = prefill(
    model, params, [prompt for prompt in prompts for _ in range(beams)], until, memory=memory, rows=rows
  )
  limits = np.resize(limits, padded(len(prompts)))  # rows of padding are done, whatever their limit
  found, read = (
    begun(state, beams, most),
    sum(reading(model, max(map(len, prompts)), remembers=memory is not None)),
  )
  while True:
    found, goes_on = run(model, params, found, limits, until, eos, beams, penalty, stopping)
    if not goes_on:
      break
    until = min(2 * until, most)
    caches = widened(model, found.state.caches, rows, buckets(read + until, 16))
    found = found.replace(state=found.state.replace(caches=caches))
  scores, tokens, lengths = jax.device_get((found.scores, found.ended, found.lengths))
  if np.isnan(scores[: len(prompts)]).any():
    raise ValueError('the logits of the model are not numbers; its parameters are no use')
  return [
    [Hypothesis(t[:n], float(s)) for s, t, n in zip(*row) if s > -np.inf]
    for row in zip(scores[: len(prompts)], tokens, lengths)
  ]


@functools.partial(jax.jit, static_argnums=(1, 2))
def begun(state: State, beams: int, most: int) -> Beams:
  """The search before its first step: all hypotheses of a row begin alike, so one of them stands for all."""
  B, K = len(state.done) // beams, beams
  alive = jnp.where(state.done.reshape(B, K) | (jnp.arange(K) > 0)[None], -jnp.inf, 0.0)
  blank = jnp.zeros((B, K, most), jnp.int32)
  return Beams(
    state,
    jnp.int32(0),
    alive,
    blank,
    jnp.full((B, K), -jnp.inf),
    blank,
    jnp.zeros((B, K), jnp.int32),
    jnp.ones(B, bool),
  )


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def widened(model: Decoder, caches: PyTree, rows: int, length: int) -> PyTree:
  """The caches with room for more."""
  return model.stack().grown(caches, rows, length)


@functools.partial(jax.jit, static_argnums=(0, 5, 6, 7, 8), donate_argnums=2)
def run(
  model: Decoder,
  params: PyTree,
  found: Beams,
  limits: Int[Array, 'B'],
  until: Int[Array, ''],
  eos: int,
  beams: int,
  penalty: Callable,
  stopping: str,
) -> tuple[Beams, Bool[Array, '']]:
  """Up to `until` tokens, and whether there is more to be done."""
  K, B, V = beams, len(limits), model.vocab
  rows = jnp.arange(B)[:, None]

  def unfinished(found):  # [B]
    worst = found.scores[:, -1]
    hopeful = found.going & (found.step < limits) & (found.log_p[:, 0] > -jnp.inf)
    if stopping == 'first' or K == 1:  # one beam is greedy decoding: what ends first is all there is
      return hopeful & (worst == -jnp.inf)
    # log p only falls, and the penalty is monotone: the best that may still come has one of two lengths.
    lengths = (found.step + 1, limits) if stopping == 'proven' else (jnp.maximum(found.step, 1),)
    best = functools.reduce(jnp.maximum, (found.log_p[:, 0] / penalty(length) for length in lengths))
    return hopeful & (best > worst)

  def step(found):
    state, going = found.state, unfinished(found)
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
    counts = ends & (jnp.arange(log_p.shape[1]) < K)[None] & going[:, None]
    scores = jnp.concatenate([found.scores, jnp.where(counts, log_p / penalty(found.step + 1), -jnp.inf)], 1)
    scores, best = jax.lax.top_k(scores, K)
    ended = jnp.concatenate([found.ended, written], 1)[rows, best]
    lengths = jnp.concatenate([found.lengths, found.step + (token != eos)], 1)[rows, best]

    log_p, best = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_p), K)
    source, token = source[rows, best], token[rows, best]
    caches = model.stack().reordered(caches, (K * rows + source).reshape(-1))
    state = State(caches, token.reshape(-1), state.positions + here[:, 0], state.done)
    return Beams(
      state,
      found.step + 1,
      log_p,
      written[rows, best],
      jnp.where(bad, jnp.nan, scores),
      ended,
      lengths,
      going,
    )

  found = jax.lax.while_loop(lambda found: unfinished(found).any() & (found.step < until), step, found)
  return found, unfinished(found).any()
