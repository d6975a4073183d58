"""Continuous batching: the rows of one decoding state, each taken by the next request when its text ends.

A prompt is read into a cache of its own, as `loop.prefill` reads any, which takes the place of a row whose
text has ended; there it decodes with the others by `loop.decode_chunk`. All rows fill the same slot next.
After the last one, all rows are moved back as far as the longest text allows; for a prompt of more tokens
than slots are filled, all are moved on. So the tokens of a row stand in the order of reading, as some mixers
need.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from tfm.decoding import loop
from tfm.decoding.sampling import Sampling, find_prompt_tokens, row_keys
from tfm.models.decoder import Decoder
from tfm.parallel import host_arrays
from tfm.shapes import Array, Int, PyTree


# Tokens decoded between two moments at which requests enter and leave.
CHUNK = 8
# Why a text ended, in OpenAI's words.
STOP, LENGTH = 'stop', 'length'
NOT_A_NUMBER = 'the logits of the model are NaN; check its parameters'


@dataclasses.dataclass(frozen=True, eq=False)
class Sequence:
  """A text to be continued.

  Attributes:
    prompt: its tokens.
    max_tokens: the most new tokens.
    sampling, seed, sample: as of `loop.generate`; the new tokens depend on these and the prompt only.
    emit: called with new tokens, and with `STOP` or `LENGTH` if they are the last ones, else ''.
    fail: called with a sentence instead if the text cannot be continued.
  """

  prompt: Int[np.ndarray, 'T']
  max_tokens: int
  sampling: Sampling
  seed: int
  sample: int
  emit: Callable[[np.ndarray, str], None]
  fail: Callable[[str], None]


class Engine:
  """Rows that decode together. Not thread-safe; `tfm.serving.worker.Worker` calls it from one thread.

  Under `sharding.context(mesh, rules)` the rows are sharded as a batch in training.

  Attributes:
    rows: how many texts are continued at once.
    length: the most tokens that are read of a text, its prompt included; also slots of the cache.
  """

  def __init__(self, model: Decoder, params: PyTree, rows: int, length: int, eos: int):
    self._model, self._params, self._eos = model, params, eos
    self.rows, self.length = loop.round_up_rows(rows), loop.round_up(length, 16)
    self._sequences: list[Sequence | None] = [None] * self.rows
    self._new_tokens = np.zeros(self.rows, np.int32)
    self._slot = 0  # that all rows fill next
    self._sampling = Sampling(
      temperature=np.zeros(self.rows, np.float32),
      top_k=np.zeros(self.rows, np.int32),
      top_p=np.ones(self.rows, np.float32),
      min_p=np.zeros(self.rows, np.float32),
      repetition_penalty=np.ones(self.rows, np.float32),
    )
    self._state, self._keys = allocate_state(model, self.rows, self.length)

  @property
  def active(self) -> int:
    """How many rows continue a text."""
    return len(self.sequences)

  @property
  def sequences(self) -> list[Sequence]:
    """Those that have a row."""
    return [sequence for sequence in self._sequences if sequence is not None]

  def validate(self, sequence: Sequence) -> None:
    """Raises ValueError for a sequence that cannot be continued."""
    sequence.sampling.validate()
    loop.validate_inputs(self._model, [sequence.prompt], sequence.max_tokens)
    needed = len(sequence.prompt) + sequence.max_tokens - 1  # the last token written is never read
    if needed > self.length:
      room = loop.count_new_tokens(self.length, len(sequence.prompt))
      raise ValueError(
        f'max_tokens={sequence.max_tokens} after a prompt of {len(sequence.prompt)} tokens needs {needed} '
        f'positions and the server has {self.length} for a text; '
        + (f'use at most max_tokens={room}' if room > 0 else 'shorten the prompt')
      )

  def add(self, sequence: Sequence) -> None:
    """Reads the prompt of a valid sequence into a free row."""
    row = self._sequences.index(None)
    self._sequences[row], self._new_tokens[row] = sequence, 0
    prompt = [np.asarray(sequence.prompt, np.int32)]
    plan = loop.plan_prefill(self._model, prompt)
    if self._slot < (width := sum(plan.widths)):
      self._shift(width - self._slot)
    new = loop.prefill(self._model, self._params, prompt, self.length - width, plan)
    new = new.replace(seen=find_prompt_tokens(prompt, plan.rows, self._model.vocab))
    key = row_keys(sequence.seed, prompt, [sequence.sample])
    place = dict(row=np.int32(row), shift=np.int32(self._slot - width))
    self._state, self._keys = insert_row(self._model, self._state, self._keys, new, key, place)
    for field in dataclasses.fields(Sampling):
      getattr(self._sampling, field.name)[row] = getattr(sequence.sampling, field.name)

  def cancel(self, sequence: Sequence) -> None:
    """Frees the row of a sequence, if it has one."""
    if sequence in self._sequences:
      self._free(self._sequences.index(sequence))

  def step(self) -> int:
    """Decodes up to `CHUNK` tokens of every row, and emits them; returns how many were emitted."""
    if self._slot == self.length:
      self._shift(self._longest - self.length)
    done = np.array([sequence is None for sequence in self._sequences])
    count = np.int32(min(CHUNK, self.length - self._slot))
    self._state, *written = loop.decode_chunk(
      self._model,
      self._params,
      self._state.replace(done=done),
      self._keys,
      self._sampling,
      self._eos,
      count,
      CHUNK,
    )
    tokens, count = host_arrays.fetch(written)
    self._slot += int(count)
    return sum(self._emit(row, tokens[row, : int(count)]) for row in np.flatnonzero(~done))

  def _emit(self, row: int, tokens: Int[np.ndarray, 'N']) -> int:
    """Emits the tokens of a row that belong to its text, and frees the row after the last one."""
    sequence = self._sequences[row]
    new = tokens[: sequence.max_tokens - self._new_tokens[row]]
    before_end = new[: loop.length_before(new, self._eos)]
    if (before_end == self._model.vocab).any():
      self._free(row)
      sequence.fail(NOT_A_NUMBER)
      return 0
    self._new_tokens[row] += len(before_end)
    is_ended = len(before_end) < len(new)
    is_full = self._new_tokens[row] == sequence.max_tokens
    if is_ended or is_full:
      self._free(row)
    sequence.emit(before_end, STOP if is_ended else LENGTH if is_full else '')
    return len(before_end)

  @property
  def _longest(self) -> int:
    """The most tokens that were read of a text."""
    counts = zip(self._sequences, self._new_tokens)
    return max((len(sequence.prompt) - 1 + int(new) for sequence, new in counts if sequence), default=0)

  def _shift(self, shift: int) -> None:
    """Moves all rows by some slots."""
    self._state, self._slot = shift_rows(self._model, self._state, np.int32(shift)), self._slot + shift

  def _free(self, row: int) -> None:
    self._sequences[row] = None
    self._sampling.temperature[row] = 0  # a row without a text samples nothing


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def allocate_state(model: Decoder, rows: int, length: int) -> tuple[loop.State, Array]:
  """A state whose rows are all free, with room for `length` tokens, and a key for each row."""
  zeros = jnp.zeros(rows, jnp.int32)
  seen = jnp.zeros((rows, model.vocab), bool)
  state = loop.State(model.init_caches(rows, length), zeros, zeros, zeros == 0, seen)
  return state, jax.random.split(jax.random.key(0), rows)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def insert_row(
  model: Decoder, state: loop.State, keys: Array, new: loop.State, key: Array, place: Mapping[str, Array]
) -> tuple[loop.State, Array]:
  """The state and the keys with row 0 of `new` and its key at place['row']; its tokens are moved by
  place['shift'] slots."""
  row, stack = place['row'], model.stack()
  rest, others = (s.replace(caches=None) for s in (state, new))
  inserted = jax.tree.map(lambda x, y: x.at[row].set(y[0]), rest, others)
  caches = stack.insert_caches(state.caches, stack.shift_caches(new.caches, place['shift']), row)
  return inserted.replace(caches=caches), keys.at[row].set(key[0])


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def shift_rows(model: Decoder, state: loop.State, shift: Int[Array, '']) -> loop.State:
  """The state with the tokens of all rows moved by some slots."""
  return state.replace(caches=model.stack().shift_caches(state.caches, shift))
