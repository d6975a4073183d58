"""Beam search: the hypotheses of highest score, on the caches of the decoding loop.

Where the layers support it, the hypotheses of a row are a tree of tokens in one cache: each step adds a token
for each of them, and a hypothesis sees those that it descends from. So nothing is copied when hypotheses
change places, and a prompt is read and kept once; now and then, tokens without descendants are removed.
Otherwise each hypothesis has caches of its own, which every step reorders.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from flax import struct

from tfm.decoding.loop import (
  State,
  encode_sources,
  new_prefix,
  plan_prefill,
  prefill,
  round_up,
  round_up_rows,
  validate_inputs,
)
from tfm.decoding.top_k import top_k
from tfm.decoding.while_loop import while_loop
from tfm.mixers.protocol import Context
from tfm.models.decoder import Decoder
from tfm.parallel import host_arrays
from tfm.parallel.compiler_options import WITHOUT_FUSION_EMITTERS
from tfm.shapes import Array, Bool, Float, Int, PyTree


jit = functools.partial(jax.jit, compiler_options=WITHOUT_FUSION_EMITTERS)

# Larger ones than in any paper, whose powers of a length are numbers still.
Exponent = Annotated[float, Interval(ge=-10, le=10)]


class Hypothesis(NamedTuple):
  """New tokens after the prompt, without the end token, and log p / length penalty."""

  tokens: np.ndarray
  score: float


@dataclasses.dataclass(frozen=True)
class Gnmt:
  """((5 + length) / 6)^α (Wu et al. 2016, eq. 14); α = 0.6 in Vaswani et al. 2017, §6.1."""

  alpha: Exponent = 0.6

  def __call__(self, length):
    return ((5.0 + length) / 6.0) ** self.alpha


@dataclasses.dataclass(frozen=True)
class Power:
  """length^α, as in T5 and `transformers`; 1: the mean log-probability of a token."""

  alpha: Exponent = 1.0

  def __call__(self, length):
    return jnp.asarray(length, jnp.float32) ** self.alpha


# A length penalty divides log p; the end token counts.
PENALTIES = {'gnmt': Gnmt, 'power': Power}

# When a row stops:
# 'proven': no live hypothesis can beat the worst ended one at any length, because log p only falls;
# 'likely': no live hypothesis would beat it by ending now;
# 'first': as many hypotheses have ended as there are beams.
# In `transformers` these are `early_stopping='never'`, `False` and `True`.
STOPPING = ('proven', 'likely', 'first')


@dataclasses.dataclass(frozen=True)
class BeamSearch:
  """The settings of a search.

  Attributes:
    beams: hypotheses per row.
    penalty: length → what divides log p, such as `Gnmt`.
    stopping: when a row stops, one of `STOPPING`; 'proven' is exact.

  Raises:
    ValueError: for beams below 1 and an unknown stopping rule.
  """

  beams: int = 4
  penalty: Callable = Gnmt()
  stopping: str = 'proven'

  def __post_init__(self):
    if self.beams < 1:
      raise ValueError(f'beams={self.beams} must be at least 1')
    if self.stopping not in STOPPING:
      raise ValueError(f'stopping={self.stopping!r} is unknown; use one of {", ".join(STOPPING)}')


# Room of the caches for new tokens of a hypothesis. When it is full a tree is pruned and gets as much again;
# caches of each hypothesis are doubled. Every step reads or reorders them, so that small ones are faster.
INITIAL_ROOM = 31


@struct.dataclass
class Beams:
  """The state of the search: K live hypotheses per row, and the K best ended ones.

  Attributes:
    state: of the decoding loop, with B · K rows; of a tree, the caches have B.
    lineage: of a tree: the cached tokens of each hypothesis; None: hypotheses have caches of their own.
    first: of a tree: the slot that follows the tokens of earlier steps, less the steps times K.
    limits: the most new tokens of each row.
    step: number of new tokens.
    log_p, tokens: of live hypotheses; log_p is -inf for missing ones.
    scores, ended, lengths: of ended hypotheses; scores are -inf for missing ones. Lengths exclude the end
      token.
    active: rows that had not stopped before the last step; a stopped row stays stopped.
  """

  state: State
  lineage: Bool[Array, 'B K S'] | None
  first: Int[Array, '']
  limits: Int[Array, 'B']
  step: Int[Array, '']
  log_p: Float[Array, 'B K']
  tokens: Int[Array, 'B K L']
  scores: Float[Array, 'B K']
  ended: Int[Array, 'B K L']
  lengths: Int[Array, 'B K']
  active: Bool[Array, 'B']


def search(  # more than six parameters: a model, prompts and the options of one search
  model: Decoder,
  params: PyTree,
  prompts: Sequence[Sequence[int]],
  *,
  max_tokens: int | Sequence[int],
  eos: int,
  settings: BeamSearch = BeamSearch(),
  sources: Sequence[Sequence[int]] | None = None,
  room: int = INITIAL_ROOM,
) -> list[list[Hypothesis]]:
  """The `settings.beams` best hypotheses of every row, best first; fewer if fewer exist.

  score = log p(tokens, end | prompt) / penalty(length of tokens and end). A hypothesis of `max_tokens` tokens
  ends without an end token. One beam is greedy decoding. Convert scanned models with `unroll_layers` first.

  Args:
    max_tokens: for all rows, or one number per row.
    sources: as in `loop.generate`.
    room: of the caches, for new tokens of a hypothesis.

  Raises:
    ValueError: as `loop.validate_inputs`, and for logits that are NaN.
  """
  beams, limits = settings.beams, np.broadcast_to(np.asarray(max_tokens, np.int32), len(prompts))
  for limit in (limits.min(initial=1), limits.max(initial=1)):
    validate_inputs(model, prompts, int(limit), sources)
  prompts = [np.asarray(prompt, np.int32) for prompt in prompts]
  is_tree = model.stack().supports_trees
  # The rows of a prompt in the caches, and the tokens that each of them reads in a step.
  copies, width = (1, beams) if is_tree else (beams, 1)
  memory = None
  if sources is not None:
    memory = encode_sources(model, params, [np.asarray(source, np.int32) for source in sources])
    memory = jax.tree.map(lambda x: jnp.repeat(x, copies, 0), memory)
  max_length = round_up(int(limits.max()), 16)
  rows, step_limit = copies * round_up_rows(len(prompts)), min(room, max_length)
  plan = plan_prefill(model, prompts, has_memory=memory is not None, rows=rows)
  repeated = [prompt for prompt in prompts for _ in range(copies)]
  state = prefill(model, params, repeated, width * step_limit, plan, memory)
  first = sum(plan.widths)
  # Padding rows are done, whatever their limit.
  padded_limits = np.resize(limits, round_up_rows(len(prompts)))
  slots = round_up(first + width * step_limit, 16) if is_tree else None
  search_state = init_beams(state, padded_limits, first, beams, max_length, slots)
  while True:
    search_state, is_unfinished = run_steps(model, params, search_state, step_limit, eos, settings)
    if not host_arrays.fetch(is_unfinished):
      break
    if is_tree:
      steps = min(room, max_length - step_limit)
      used = int(host_arrays.fetch(count_ancestors(search_state)))
      # Few sizes, as each is compiled.
      search_state = prune(model, search_state, rows, used, round_up(used + width * steps, 64))
      step_limit += steps
    else:
      step_limit = min(2 * step_limit, max_length)
      search_state = grow_caches(model, search_state, rows, round_up(first + step_limit, 16))
  scores, tokens, lengths = host_arrays.fetch((search_state.scores, search_state.ended, search_state.lengths))
  if np.isnan(scores[: len(prompts)]).any():
    raise ValueError('the logits of the model are NaN; check its parameters')
  return [
    [Hypothesis(t[:n], float(s)) for s, t, n in zip(*row) if s > -np.inf]
    for row in zip(scores[: len(prompts)], tokens, lengths)
  ]


@functools.partial(jit, static_argnums=(3, 4, 5))
def init_beams(
  state: State, limits: Int[Array, 'B'], first: Int[Array, ''], beams: int, max_length: int, slots: int | None
) -> Beams:
  """The initial state: all hypotheses of a row are equal, so that only the first one is live.

  Args:
    slots: of a tree: the tokens that its caches have room for.
  """
  B, K = len(limits), beams
  lineage = None
  if slots is not None:
    lineage = jnp.broadcast_to(jnp.arange(slots) < first, (B, K, slots))
    state = state.replace(
      tokens=jnp.repeat(state.tokens, K),
      positions=jnp.repeat(state.positions, K),
      done=jnp.repeat(state.done, K),
    )
  log_p = jnp.where(state.done.reshape(B, K) | (jnp.arange(K) > 0)[None], -jnp.inf, 0.0)
  tokens = jnp.zeros((B, K, max_length), jnp.int32)
  return Beams(
    state,
    lineage,
    jnp.int32(first),
    limits,
    jnp.int32(0),
    log_p,
    tokens,
    jnp.full((B, K), -jnp.inf),
    tokens,
    jnp.zeros((B, K), jnp.int32),
    jnp.ones(B, bool),
  )


@functools.partial(jit, static_argnums=(0, 2, 3))
def grow_caches(model: Decoder, search_state: Beams, rows: int, length: int) -> Beams:
  """The state, whose caches have room for `length` tokens."""
  caches = model.stack().grow_caches(search_state.state.caches, rows, length)
  return search_state.replace(state=search_state.state.replace(caches=caches))


@jit
def count_ancestors(search_state: Beams) -> Int[Array, '']:
  """The most tokens in the tree of a row that a live hypothesis descends from."""
  return search_state.lineage.any(1).sum(-1).max()


@functools.partial(jit, static_argnums=(0, 2, 4))
def prune(model: Decoder, search_state: Beams, rows: int, used: Int[Array, ''], length: int) -> Beams:
  """The state without the tokens from which no live hypothesis descends: the others fill the first `used`
  slots of caches with room for `length` tokens.
  """
  lineage, stack = search_state.lineage, model.stack()
  caches = stack.grow_caches(search_state.state.caches, rows, max(length, lineage.shape[-1]))
  slots = jnp.argsort(~lineage.any(1), axis=-1, stable=True)[:, :length]
  slots = jnp.pad(slots, [(0, 0), (0, length - slots.shape[-1])], constant_values=lineage.shape[-1])
  kept = jnp.take_along_axis(lineage, slots[:, None], -1, mode='fill', fill_value=False)
  caches = stack.select_slots(caches, slots, used)
  return search_state.replace(
    state=search_state.state.replace(caches=caches),
    lineage=kept,
    first=used - search_state.step * lineage.shape[1],
  )


@functools.partial(jit, static_argnums=(0, 4, 5), donate_argnums=2)
def run_steps(
  model: Decoder,
  params: PyTree,
  search_state: Beams,
  step_limit: Int[Array, ''],
  eos: int,
  settings: BeamSearch,
) -> tuple[Beams, Bool[Array, '']]:
  """Runs the search up to step `step_limit`; returns its state and whether it is unfinished."""
  limits, penalty, stopping = search_state.limits, settings.penalty, settings.stopping
  K, B, V = settings.beams, len(limits), model.vocab
  rows, is_tree = jnp.arange(B)[:, None], search_state.lineage is not None
  width = K if is_tree else 1

  def is_unfinished(search_state):  # [B]
    worst = search_state.scores[:, -1]
    is_possible = search_state.active & (search_state.step < limits) & (search_state.log_p[:, 0] > -jnp.inf)
    if stopping == 'first' or K == 1:  # one beam is greedy decoding: the first end is final
      return is_possible & (worst == -jnp.inf)
    # log p only falls, and the penalty is monotone: the best possible score is at one of two lengths.
    lengths = (
      (search_state.step + 1, limits) if stopping == 'proven' else (jnp.maximum(search_state.step, 1),)
    )
    best = functools.reduce(jnp.maximum, (search_state.log_p[:, 0] / penalty(length) for length in lengths))
    return is_possible & (best > worst)

  def step(search_state):
    state, active = search_state.state, is_unfinished(search_state)
    is_token = jnp.where(state.done, 0, 1)
    tokens, positions, segments = (
      x.reshape(B * K // width, width) for x in (state.tokens, state.positions, is_token)
    )
    lineage = search_state.lineage
    if is_tree:  # each hypothesis also sees the token that it adds
      own = search_state.first + search_state.step * K + jnp.arange(K)
      lineage |= (jnp.arange(lineage.shape[-1])[None] == own[:, None])[None]
    context = Context(positions, segments, new_prefix(model, segments), lineage=lineage)
    logits, caches = model.apply({'params': params}, tokens, context, state.caches)
    log_p = search_state.log_p[:, :, None] + jax.nn.log_softmax(logits.reshape(B, K, V))
    has_nan = jnp.isnan(log_p).any()
    # At least K of these have not ended, since each live hypothesis has only one end.
    log_p, indices = top_k(log_p.reshape(B, K * V), min(2 * K, K * V))
    source, token = indices // V, indices % V
    ends = (token == eos) | (search_state.step + 1 >= limits)[:, None]

    written = search_state.tokens[rows, source].at[:, :, search_state.step].set(token)
    # An end counts if it is among the K most likely continuations and its row is active.
    is_counted = ends & (jnp.arange(log_p.shape[1]) < K)[None] & active[:, None]
    scores = jnp.concatenate(
      [search_state.scores, jnp.where(is_counted, log_p / penalty(search_state.step + 1), -jnp.inf)], 1
    )
    scores, best = jax.lax.top_k(scores, K)
    ended = jnp.concatenate([search_state.ended, written], 1)[rows, best]
    lengths = jnp.concatenate([search_state.lengths, search_state.step + (token != eos)], 1)[rows, best]

    log_p, best = jax.lax.top_k(jnp.where(ends, -jnp.inf, log_p), K)
    source, token = source[rows, best], token[rows, best]
    if is_tree:
      lineage = lineage[rows, source]
    else:
      caches = model.stack().reorder_caches(caches, (K * rows + source).reshape(-1))
    state = State(caches, token.reshape(-1), state.positions + is_token, state.done)
    return Beams(
      state,
      lineage,
      search_state.first,
      limits,
      search_state.step + 1,
      log_p,
      written[rows, best],
      jnp.where(has_nan, jnp.nan, scores),
      ended,
      lengths,
      active,
    )

  search_state = while_loop(
    lambda search_state: is_unfinished(search_state).any() & (search_state.step < step_limit),
    step,
    search_state,
  )
  return search_state, is_unfinished(search_state).any()
