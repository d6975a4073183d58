"""Autoregressive generation with an explicit cache: prefill the prompts, then decode token by token.

Rows are padded on the left, so that all prompts end in the same column and new tokens follow without a gap.
Prefill stops before the last token of a prompt and computes no logits; the decoding loop starts by reading
that token.

Compilation depends on rounded sizes (`round_up`), on the model and on whether there is a repetition penalty,
but not on the length of a prompt, the values of the sampling settings or the number of new tokens.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.decoding.sampling import Sampling, find_prompt_tokens, row_keys, sample_tokens
from tfm.decoding.while_loop import while_loop
from tfm.mixers.protocol import Context, Memory
from tfm.models.decoder import Decoder
from tfm.parallel import host_arrays
from tfm.parallel.compiler_options import WITHOUT_FUSION_EMITTERS
from tfm.parallel.sharding import mesh_axes_of, shard_count
from tfm.shapes import Array, Bool, Int, PyTree


# Tokens of a prompt that are read at once: wide pieces first, then narrow ones for the rest.
PREFILL_WIDTHS = (128, 16)

# Default number of new tokens of a row, unless the model has fewer positions.
MAX_TOKENS = 256

# Tokens decoded in one call of the compiled loop, between two synchronizations with the host.
CHUNK = 16


@struct.dataclass
class State:
  """The state of the decoding loop.

  Attributes:
    caches: of all tokens read.
    tokens, positions: the last token of each row, not yet read, and its position.
    done: rows that have ended; they continue as padding.
    seen: tokens in each row, prompt included; None without a repetition penalty.
  """

  caches: PyTree
  tokens: Int[Array, 'B']
  positions: Int[Array, 'B']
  done: Bool[Array, 'B']
  seen: Bool[Array, 'B V'] | None = None


class PrefillPlan(NamedTuple):
  """How prompts are read.

  Attributes:
    rows: of the state; rows beyond the prompts are done.
    widths: of the pieces in which the prompts are read.
  """

  rows: int
  widths: list[int]


def generate(  # more than six parameters: a model, prompts and the options of one generation
  model: Decoder,
  params: PyTree,
  prompts: Sequence[Sequence[int]],
  *,
  max_tokens: int,
  eos: int | None,
  sources: Sequence[Sequence[int]] | None = None,
  sampling: Sampling = Sampling(),
  seed: int = 0,
  samples: Sequence[int] | None = None,
  chunk: int = CHUNK,
  prefill_widths: Sequence[int] = PREFILL_WIDTHS,
) -> Iterator[list[np.ndarray]]:
  """Continues every prompt; yields the new tokens of each row, int32, up to `chunk` at a time.

  A row ends before `eos`, which is not yielded, or after `max_tokens`; the iterator ends with the last row.
  The tokens of a row depend on its source, prompt, `seed` and sample number only, not on other rows, `chunk`
  or `prefill_widths`. Convert scanned models with `unroll_layers` first. Under `sharding.context(mesh,
  rules)` the rows are sharded as a batch in training.

  Args:
    prompts: B token sequences, none empty. For an encoder-decoder they start with the end-of-text token,
      and further tokens are a forced prefix.
    sources: B token sequences, for an encoder-decoder.
    eos: the token that ends a row; None: none.
    samples: the sample number of each row, to draw several samples of one prompt; default 0.
    chunk: tokens decoded between two synchronizations with the host.
    prefill_widths: tokens of a prompt read at once: the possible widths, in descending order.

  Raises:
    ValueError: as `validate_inputs`, and, from the iterator, for logits that are NaN.
  """
  sampling.validate()
  validate_inputs(model, prompts, max_tokens, sources)
  prompts = [np.asarray(prompt, np.int32) for prompt in prompts]
  sources = None if sources is None else [np.asarray(source, np.int32) for source in sources]
  identities = prompts if sources is None else [np.concatenate(pair) for pair in zip(sources, prompts)]
  keys = row_keys(seed, identities, [0] * len(prompts) if samples is None else samples)
  # One type for each setting; another type would compile again.
  sampling = Sampling(
    float(sampling.temperature),
    min(int(sampling.top_k), model.vocab),
    float(sampling.top_p),
    float(sampling.min_p),
    float(sampling.repetition_penalty),
  )
  eos = -1 if eos is None else eos
  plan = plan_prefill(model, prompts, prefill_widths, has_memory=sources is not None)

  def iterate():
    memory = None if sources is None else encode_sources(model, params, sources)
    state = prefill(model, params, prompts, max_tokens, plan, memory)
    if sampling.repetition_penalty != 1:
      state = state.replace(seen=find_prompt_tokens(prompts, len(state.done), model.vocab))
    row_key = keys[np.minimum(np.arange(len(state.done)), len(prompts) - 1)]  # padding rows need a key too
    ended = np.zeros(len(prompts), bool)
    for start in range(0, max_tokens, chunk):
      count = min(chunk, max_tokens - start)
      state, *written = decode_chunk(model, params, state, row_key, sampling, eos, count, chunk)
      tokens, count = host_arrays.fetch(written)
      tokens = tokens[: len(prompts), : int(count)]
      if (tokens == model.vocab).any():
        raise ValueError('the logits of the model are NaN; check its parameters')
      new = [row[:0] if end else row[: length_before(row, eos)] for row, end in zip(tokens, ended)]
      ended |= (tokens == eos).any(1)
      yield new
      if ended.all():
        return

  return iterate()


def generate_all(*args, **kwargs) -> list[np.ndarray]:
  """As `generate`, but returns all new tokens of each row at once."""
  return [np.concatenate(row) for row in zip(*generate(*args, **kwargs))]


def validate_inputs(
  model: Decoder,
  prompts: Sequence[Sequence[int]],
  max_tokens: int,
  sources: Sequence[Sequence[int]] | None = None,
) -> None:
  """Validates the arguments of `generate`.

  Raises:
    ValueError: for no prompt, an empty one, a token outside the vocabulary, max_tokens below 1, positions
      beyond the model's maximum, sources for a decoder, or missing sources for an encoder-decoder.
  """
  if max_tokens < 1:
    raise ValueError(f'max_tokens={max_tokens} must be at least 1')
  if not len(prompts):
    raise ValueError('prompts is empty; pass at least one')
  for i, prompt in enumerate(prompts):
    if not len(prompt):
      raise ValueError(f'prompts[{i}] is empty; start it with the end-of-text token')
    if not 0 <= np.min(prompt) <= np.max(prompt) < model.vocab:
      raise ValueError(f'prompts[{i}] has a token outside the vocabulary of {model.vocab}')
  longest = max(map(len, prompts))
  needed = longest + max_tokens - 1  # the last token written is never read
  for name, limit in list_position_limits(model.positions):
    if needed > limit:
      room = count_new_tokens(limit, longest)
      raise ValueError(
        f'max_tokens={max_tokens} after a prompt of {longest} tokens needs {needed} positions and '
        f'{name} has {limit}; ' + (f'use at most max_tokens={room}' if room > 0 else 'shorten the prompt')
      )
  validate_sources(model, sources, len(prompts))


def count_new_tokens(limit: int, prompt_length: int) -> int:
  """How many tokens fit after a prompt; the last token needs no position, since it is not read."""
  return limit + 1 - prompt_length


def default_max_tokens(model: Decoder, prompts: Sequence[Sequence[int]]) -> int:
  """`MAX_TOKENS`, or as many new tokens as the model has positions for after these prompts; at least 1."""
  longest, limits = max(map(len, prompts)), list_position_limits(model.positions)
  return max(1, min([MAX_TOKENS, *(count_new_tokens(limit, longest) for _, limit in limits)]))


def validate_sources(model: Decoder, sources: Sequence[Sequence[int]] | None, rows: int) -> None:
  """Raises ValueError for sources that the model cannot read."""
  if not hasattr(model, 'encode'):
    if sources is not None:
      raise ValueError(
        'sources require an encoder-decoder, and the model is a decoder; move them into the prompts'
      )
    return
  if sources is None or len(sources) != rows:
    raise ValueError(
      f'an encoder-decoder requires one source for each of {rows} prompts; '
      f'there are {0 if sources is None else len(sources)}'
    )
  vocab = model.source_vocab or model.vocab
  for i, source in enumerate(sources):
    if not len(source) or not 0 <= np.min(source) <= np.max(source) < vocab:
      raise ValueError(f'sources[{i}] is empty or has a token outside the vocabulary of {vocab}')
  longest = max(map(len, sources))
  for name, limit in list_position_limits(model.encoder.keywords['positions']):
    if longest > limit:
      raise ValueError(
        f'a source of {longest} tokens needs as many positions and {name} has {limit}; shorten it'
      )


def list_position_limits(positions: Sequence[Callable]) -> Iterator[tuple[str, int]]:
  """Yields (name, maximum number of positions) of the positions that have a maximum."""
  for factory in positions:
    position = factory()
    if position.max_positions is not None:
      yield type(position).__name__, position.max_positions


def encode_sources(model: Decoder, params: PyTree, sources: Sequence[np.ndarray]) -> Memory:
  """The encoder's output for the sources, with the same number of rows as `prefill`."""
  length, rows = round_up(max(map(len, sources)), 8), round_up_rows(len(sources))
  tokens, segments = np.zeros((2, rows, length), np.int32)
  for row, source in enumerate(sources):
    tokens[row, : len(source)], segments[row, : len(source)] = source, 1
  positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
  return _encode(model, params, tokens, Context(positions, segments))


@functools.partial(jax.jit, static_argnums=0)
def _encode(model: Decoder, params: PyTree, tokens: Int[Array, 'B S'], context: Context) -> Memory:
  """`model.encode`."""
  return model.apply({'params': params}, tokens, context, method='encode')


def prefill(
  model: Decoder,
  params: PyTree,
  prompts: Sequence[np.ndarray],
  room: int,
  plan: PrefillPlan,
  memory: Memory | None = None,
) -> State:
  """Reads all prompts except their last tokens, into caches with `room` further slots.

  A memory is read with the first piece; with a memory there is at least one piece, of padding if necessary.
  """
  has_prefix, rows, length = 'prefix' in model.required_fields, plan.rows, sum(plan.widths)
  tokens, positions, segments, prefix = np.zeros((4, rows, length + 1), np.int32)
  for row, prompt in enumerate(prompts):
    n = len(prompt)
    tokens[row, -n:], positions[row, -n:], segments[row, -n:], prefix[row, -n:] = (
      prompt,
      np.arange(n),
      1,
      n - 1,
    )
  caches = allocate_caches(model, rows, round_up(length + room, 16))
  start = 0
  for width in plan.widths:
    piece = slice(start, start + width)
    context = Context(positions[:, piece], segments[:, piece], prefix[:, piece] if has_prefix else None)
    caches = read_tokens(model, params, tokens[:, piece], context, caches, memory)
    start, memory = start + width, None
  return State(caches, tokens[:, -1], positions[:, -1], segments[:, -1] == 0)


def plan_prefill(
  model: Decoder,
  prompts: Sequence[np.ndarray],
  prefill_widths: Sequence[int] = PREFILL_WIDTHS,
  has_memory: bool = False,
  rows: int | None = None,
) -> PrefillPlan:
  """The plan for some prompts.

  Args:
    rows: of the state; default: the number of prompts rounded up by `round_up_rows`.
  """
  longest, rows = max(map(len, prompts)), round_up_rows(len(prompts)) if rows is None else rows
  # A prefix is visible to all of its tokens, so that it is read in one piece.
  widths = (
    [round_up(longest - 1, 16)] * (longest > 1)
    if 'prefix' in model.required_fields
    else split_into_widths(longest - 1, prefill_widths)
  )
  return PrefillPlan(rows, widths or [1] * has_memory)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def allocate_caches(model: Decoder, batch: int, length: int) -> PyTree:
  """`model.init_caches` with every array in separate memory, so that it can be donated."""
  return model.init_caches(batch, length)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=4)
def read_tokens(
  model: Decoder,
  params: PyTree,
  tokens: Int[Array, 'B T'],
  context: Context,
  caches: PyTree,
  memory: Memory | None = None,
) -> PyTree:
  """The caches after reading `tokens`, and the memory if there is one."""
  return model.apply({'params': params}, tokens, context, caches, memory, method='features')[1]


@functools.partial(jax.jit, static_argnums=(0, 7), donate_argnums=2, compiler_options=WITHOUT_FUSION_EMITTERS)
def decode_chunk(
  model: Decoder,
  params: PyTree,
  state: State,
  keys: Array,
  sampling: Sampling,
  eos: int,
  count: int,
  chunk: int,
) -> tuple[State, Int[Array, 'B chunk'], Int[Array, '']]:
  """Decodes up to `count` ≤ `chunk` tokens, fewer if all rows end; returns (state, tokens, number of tokens).

  A row that has ended repeats its last token.
  """

  def is_unfinished(carry):
    i, state, _ = carry
    return (i < count) & ~state.done.all()

  def step(carry):
    i, state, written = carry
    segments = jnp.where(state.done, 0, 1)
    context = Context(state.positions[:, None], segments[:, None], new_prefix(model, segments[:, None]))
    logits, caches = model.apply({'params': params}, state.tokens[:, None], context, state.caches)
    sampled = sample_tokens(logits[:, 0], keys, state.positions + 1, sampling, state.seen)
    tokens = jnp.where(state.done, state.tokens, sampled)
    seen = None if state.seen is None else state.seen | jax.nn.one_hot(tokens, model.vocab, dtype=bool)
    written = jax.lax.dynamic_update_slice(written, tokens[:, None], (0, i))
    return (
      i + 1,
      State(caches, tokens, state.positions + segments, state.done | (tokens == eos), seen),
      written,
    )

  written = jnp.zeros((len(state.tokens), chunk), jnp.int32)
  count, state, written = while_loop(is_unfinished, step, (0, state, written))
  return state, written, count


def new_prefix(model: Decoder, segments: Int[Array, 'B T']) -> Int[Array, 'B T'] | None:
  """The prefix lengths of new tokens, for masks that require them: 0, which is never read, because new tokens
  follow the prefix, and its own tokens carry its length.
  """
  return jnp.zeros_like(segments) if 'prefix' in model.required_fields else None


def round_up(n: int, least: int = 1) -> int:
  """Rounds n up to one of few sizes: multiples of `least`, then four sizes per doubling."""
  step = max(least, 1 << max(0, (n - 1).bit_length() - 3))
  return -(-n // step) * step


def round_up_rows(rows: int) -> int:
  """Rounds the number of rows up to one of few sizes that the current mesh divides."""
  return round_up(-(-rows // shard_count(mesh_axes_of('batch')))) * shard_count(mesh_axes_of('batch'))


def split_into_widths(n: int, widths: Sequence[int]) -> list[int]:
  """Splits n tokens into pieces of the given widths, the widest first; the last width covers the rest."""
  *wide, last = widths
  prefill_widths = []
  for width in wide:
    prefill_widths += [width] * (n // width)
    n %= width
  return prefill_widths + [last] * -(-n // last)


def length_before(tokens: np.ndarray, eos: int) -> int:
  """The number of tokens before the first `eos`."""
  ends = np.flatnonzero(tokens == eos)
  return int(ends[0]) if len(ends) else len(tokens)
