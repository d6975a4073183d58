"""One loop over an explicit cache: read the prompts, then write token after token.

Rows are padded on the left: the prompts of all rows end in the same column, and what is written
follows without a hole. Reading a prompt makes no logits, for it stops before the last token; the loop
begins by reading that one, as it reads every token that it has written.

What is compiled depends on sizes rounded up (`buckets`), on the model and on whether repetition is
penalised, never on a prompt's own length, on the sampling's numbers or on how many tokens are asked for.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.decoding.sampling import Sampling, present, row_keys, sample
from tfm.mixers.protocol import Context, Memory
from tfm.models.decoder import Decoder
from tfm.parallel.sharding import mesh_axes_of, shard_count
from tfm.shapes import Array, Bool, Int, PyTree


# Prompts are read in pieces of so many tokens: long ones, then short ones for what is left.
PIECES = (128, 16)

# Tokens written between two looks of the host; one compiled loop.
CHUNK = 16


@struct.dataclass
class State:
  """What the loop hands on from token to token.

  Attributes:
    caches: of everything read.
    tokens, positions: the last token of each row, not yet read, and where it stands.
    done: rows that have ended; they go on as padding.
    seen: the tokens that each row holds, prompt included; None where no repetition penalty asks for it.
  """

  caches: PyTree
  tokens: Int[Array, 'B']
  positions: Int[Array, 'B']
  done: Bool[Array, 'B']
  seen: Bool[Array, 'B V'] | None = None


def generate(
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
  pieces: Sequence[int] = PIECES,
) -> Iterator[list[np.ndarray]]:
  """Continues every prompt; yields the new tokens of each row, int32, up to `chunk` at a time.

  A row ends before `eos`, which is not yielded, or after `max_tokens`; the iterator ends with the
  last row. What a row becomes depends on its source, prompt, `seed` and sample number only, not on the
  rows beside it, `chunk` or `pieces`. For scanned models see `unrolled`. Under
  `sharding.context(mesh, rules)` the rows are cut as a batch in training.

  Args:
    prompts: B token sequences, none empty. An encoder-decoder's begin with the end-of-text token; what
      follows is forced.
    sources: B token sequences, for an encoder-decoder.
    eos: the token that ends a row; None: none does.
    samples: each row's sample number, to draw several from one prompt; 0 unless given.
    chunk: tokens written between two looks of the host.
    pieces: tokens of a prompt read at once, the widths to choose from in descending order.

  Raises:
    ValueError: for what `check` refuses, and, from the iterator, for logits that are not numbers.
  """
  sampling.check()
  check(model, prompts, max_tokens, sources)
  prompts = [np.asarray(prompt, np.int32) for prompt in prompts]
  sources = None if sources is None else [np.asarray(source, np.int32) for source in sources]
  told = prompts if sources is None else [np.concatenate(pair) for pair in zip(sources, prompts)]
  keys = row_keys(seed, told, [0] * len(prompts) if samples is None else samples)
  # One type for each setting, whatever was given: another would compile again.
  sampling = Sampling(
    float(sampling.temperature),
    min(int(sampling.top_k), model.vocab),
    float(sampling.top_p),
    float(sampling.min_p),
    float(sampling.repetition_penalty),
  )
  eos = -1 if eos is None else eos
  return _generate(model, params, prompts, sources, keys, sampling, max_tokens, eos, chunk, pieces)


def complete(*args, **kwargs) -> list[np.ndarray]:
  """As `generate`, at once: all new tokens of each row."""
  return [np.concatenate(row) for row in zip(*generate(*args, **kwargs))]


def check(
  model: Decoder,
  prompts: Sequence[Sequence[int]],
  max_tokens: int,
  sources: Sequence[Sequence[int]] | None = None,
) -> None:
  """Refuses what cannot be generated.

  Raises:
    ValueError: for no prompt, an empty one, a token that is not in the vocabulary, max_tokens below
      1, more positions than a positional scheme can tell, or sources where the model reads none, or
      none where it does.
  """
  if max_tokens < 1:
    raise ValueError(f'max_tokens={max_tokens} must be at least 1')
  if not len(prompts):
    raise ValueError('prompts is empty; give at least one')
  for i, prompt in enumerate(prompts):
    if not len(prompt):
      raise ValueError(f'prompts[{i}] is empty; begin it with the end-of-text token')
    if not 0 <= np.min(prompt) <= np.max(prompt) < model.vocab:
      raise ValueError(f'prompts[{i}] holds a token outside of the vocabulary of {model.vocab}')
  longest = max(map(len, prompts))
  needed = longest + max_tokens - 1  # the last token written is never read
  for name, reach in reaches(model.positions):
    if needed > reach:
      room = most(reach, longest)
      raise ValueError(
        f'max_tokens={max_tokens} after a prompt of {longest} tokens needs {needed} positions and '
        f'{name} has {reach}; '
        + (f'at most max_tokens={room} would do' if room > 0 else 'shorten the prompt')
      )
  check_sources(model, sources, len(prompts))


def most(reach: int, prompt: int) -> int:
  """The tokens for which there are positions after a prompt of so many."""
  return reach + 1 - prompt


def check_sources(model: Decoder, sources: Sequence[Sequence[int]] | None, rows: int) -> None:
  """Refuses sources that the model cannot read."""
  if not hasattr(model, 'encode'):
    if sources is not None:
      raise ValueError(
        'sources are for an encoder-decoder, and the model is a decoder; put them into the prompts'
      )
    return
  if sources is None or len(sources) != rows:
    raise ValueError(
      f'an encoder-decoder needs a source for each of {rows} prompts, and here are '
      f'{0 if sources is None else len(sources)}'
    )
  vocab = model.source_vocab or model.vocab
  for i, source in enumerate(sources):
    if not len(source) or not 0 <= np.min(source) <= np.max(source) < vocab:
      raise ValueError(f'sources[{i}] is empty or holds a token outside of the vocabulary of {vocab}')
  longest = max(map(len, sources))
  for name, reach in reaches(model.encoder.keywords['positions']):
    if longest > reach:
      raise ValueError(
        f'a source of {longest} tokens needs as many positions and {name} has {reach}; shorten it'
      )


def reaches(positions: Sequence[Callable]) -> Iterator[tuple[str, int]]:
  """(name, positions that it can tell) of the positional schemes that come to an end."""
  for factory in positions:
    position = factory()
    if position.reach is not None:
      yield type(position).__name__, position.reach


def _generate(model, params, prompts, sources, keys, sampling, max_tokens, eos, chunk, pieces):
  memory = None if sources is None else remember(model, params, sources)
  state = prefill(model, params, prompts, max_tokens, pieces, memory)
  if sampling.repetition_penalty != 1:
    state = state.replace(seen=present(prompts, len(state.done), model.vocab))
  keys = keys[np.minimum(np.arange(len(state.done)), len(prompts) - 1)]  # padding rows need one too
  ended = np.zeros(len(prompts), bool)
  for start in range(0, max_tokens, chunk):
    count = min(chunk, max_tokens - start)
    state, made, count = decode(model, params, state, keys, sampling, eos, count, chunk)
    made = np.asarray(made)[: len(prompts), : int(count)]
    if (made == model.vocab).any():
      raise ValueError('the logits of the model are not numbers; its parameters are no use')
    new = [row[:0] if end else row[: until(row, eos)] for row, end in zip(made, ended)]
    ended |= (made == eos).any(1)
    yield new
    if ended.all():
      return


def remember(model: Decoder, params: PyTree, sources: Sequence[np.ndarray]) -> Memory:
  """What the encoder makes of the sources, of as many rows as `prefill` makes of as many prompts."""
  length, rows = buckets(max(map(len, sources)), 8), padded(len(sources))
  tokens, segments = np.zeros((2, rows, length), np.int32)
  for row, source in enumerate(sources):
    tokens[row, : len(source)], segments[row, : len(source)] = source, 1
  positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
  return encode(model, params, tokens, Context(positions, segments))


@functools.partial(jax.jit, static_argnums=0)
def encode(model: Decoder, params: PyTree, tokens: Int[Array, 'B S'], context: Context) -> Memory:
  """`model.encode`."""
  return model.apply({'params': params}, tokens, context, method='encode')


def prefill(
  model: Decoder,
  params: PyTree,
  prompts: Sequence[np.ndarray],
  room: int,
  pieces: Sequence[int] = PIECES,
  memory: Memory | None = None,
  rows: int | None = None,
) -> State:
  """Reads all prompts but their last tokens, into caches with slots for `room` more tokens.

  The memory is read with the first piece, which there is, be it of padding, where there is a memory.

  Args:
    rows: to make, of which those beyond the prompts are done; `padded` of as many prompts unless given.
  """
  longest, prefixed = max(map(len, prompts)), 'prefix' in model.reads
  widths = reading(model, longest, pieces, memory is not None)
  length, rows = sum(widths), padded(len(prompts)) if rows is None else rows
  tokens, positions, segments, prefix = np.zeros((4, rows, length + 1), np.int32)
  for row, prompt in enumerate(prompts):
    n = len(prompt)
    tokens[row, -n:], positions[row, -n:], segments[row, -n:], prefix[row, -n:] = (
      prompt,
      np.arange(n),
      1,
      n - 1,
    )
  caches = empty(model, rows, buckets(length + room, 16))
  start = 0
  for width in widths:
    piece = slice(start, start + width)
    context = Context(positions[:, piece], segments[:, piece], prefix[:, piece] if prefixed else None)
    caches = read(model, params, tokens[:, piece], context, caches, memory)
    start, memory = start + width, None
  return State(caches, tokens[:, -1], positions[:, -1], segments[:, -1] == 0)


def reading(
  model: Decoder, longest: int, pieces: Sequence[int] = PIECES, remembers: bool = False
) -> list[int]:
  """How many tokens are read at once, time after time, of prompts of which the longest has so many."""
  # A prefix is what was there before writing began; seen from everywhere in it, it is read at once.
  widths = [buckets(longest - 1, 16)] * (longest > 1) if 'prefix' in model.reads else cut(longest - 1, pieces)
  return widths or [1] * remembers


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def empty(model: Decoder, batch: int, length: int) -> PyTree:
  """`model.init_caches`, every array in memory of its own, to be donated."""
  return model.init_caches(batch, length)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=4)
def read(
  model: Decoder,
  params: PyTree,
  tokens: Int[Array, 'B T'],
  context: Context,
  caches: PyTree,
  memory: Memory | None = None,
) -> PyTree:
  """The caches with `tokens` in them, and with the memory where one is given."""
  return model.apply({'params': params}, tokens, context, caches, memory, method='features')[1]


@functools.partial(jax.jit, static_argnums=(0, 7), donate_argnums=2)
def decode(
  model: Decoder,
  params: PyTree,
  state: State,
  keys: Array,
  sampling: Sampling,
  eos: int,
  count: int,
  chunk: int,
) -> tuple[State, Int[Array, 'B chunk'], Int[Array, '']]:
  """Writes up to `count` ≤ `chunk` tokens, fewer if all rows end; (state, tokens, how many).

  A row that has ended repeats its last token.
  """

  def unfinished(carry):
    i, state, _ = carry
    return (i < count) & ~state.done.all()

  def step(carry):
    i, state, made = carry
    segments = jnp.where(state.done, 0, 1)
    # What is written stands after the prefix, whose length is known from its own tokens: 0 will do.
    context = Context(state.positions[:, None], segments[:, None], jnp.zeros_like(segments)[:, None])
    logits, caches = model.apply({'params': params}, state.tokens[:, None], context, state.caches)
    drawn = sample(logits[:, 0], keys, state.positions + 1, sampling, state.seen)
    tokens = jnp.where(state.done, state.tokens, drawn)
    seen = None if state.seen is None else state.seen | jax.nn.one_hot(tokens, model.vocab, dtype=bool)
    made = jax.lax.dynamic_update_slice(made, tokens[:, None], (0, i))
    return i + 1, State(caches, tokens, state.positions + segments, state.done | (tokens == eos), seen), made

  made = jnp.zeros((len(state.tokens), chunk), jnp.int32)
  count, state, made = jax.lax.while_loop(unfinished, step, (0, state, made))
  return state, made, count


def buckets(n: int, least: int = 1) -> int:
  """n rounded up to one of few sizes: multiples of `least`, from there on four to each doubling."""
  step = max(least, 1 << max(0, (n - 1).bit_length() - 3))
  return -(-n // step) * step


def padded(rows: int) -> int:
  """Rows rounded up to one of few numbers that the mesh in force divides."""
  return buckets(-(-rows // shard_count(mesh_axes_of('batch')))) * shard_count(mesh_axes_of('batch'))


def cut(n: int, widths: Sequence[int]) -> list[int]:
  """n tokens in pieces of the given widths, the widest first; the last width fills what is left."""
  *wide, last = widths
  pieces = []
  for width in wide:
    pieces += [width] * (n // width)
    n %= width
  return pieces + [last] * -(-n // last)


def until(tokens: np.ndarray, eos: int) -> int:
  """How many tokens stand before the first `eos`."""
  found = np.flatnonzero(tokens == eos)
  return int(found[0]) if len(found) else len(tokens)
