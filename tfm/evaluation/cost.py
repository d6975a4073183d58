"""What a model costs: bytes of cache for each token, tokens written per second, time and memory of a training step.

Bytes are worked out or told by the compiler; rates are measured, so that they are of the machine that is here.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tfm.decoding import loop
from tfm.decoding.sampling import Sampling, row_keys
from tfm.decoding.unroll import unroll_layers
from tfm.models import memory
from tfm.models.decoder import Decoder
from tfm.shapes import PyTree


@dataclasses.dataclass(frozen=True)
class CacheBytes:
  """Bytes of one sequence's cache: `constant + per_token · length`."""

  per_token: int
  constant: int


@dataclasses.dataclass(frozen=True)
class StepCost:
  """What a compiled step costs.

  Attributes:
    seconds: of one step, the median of several.
    peak_bytes: what one device must hold, by the compiler's account: arguments, results where they take no argument's
      place, and the block of its temporaries.
    temporary_bytes: the temporaries among them.
  """

  seconds: float
  peak_bytes: int
  temporary_bytes: int


def cache_bytes(model: Decoder) -> CacheBytes:
  """The bytes of the caches of all layers for one sequence, from the shapes that the model gives them; nothing is allocated.

  All counts that the cache holds, beside keys and values also where each token stands: 12 bytes a token in every layer
  that keeps tokens. A mask makes no cache smaller: all tokens are kept, whatever a window shows of them. Recurrent
  mixers keep no tokens, and `per_token` is 0. What an encoder-decoder keeps of its source does not count.

  Raises:
    ValueError: if a mixer has no cache, or one that does not grow evenly with the length.
  """

  def size(length):
    return memory.whole(jax.eval_shape(lambda: model.init_caches(1, length)))

  short, long = 64, 128
  per_token, rest = divmod(size(long) - size(short), long - short)
  constant = size(short) - per_token * short
  if rest or size(2 * long) != constant + per_token * 2 * long:
    raise ValueError(
      f'the caches of {short}, {long} and {2 * long} tokens have {size(short)}, {size(long)} and '
      f'{size(2 * long)} bytes, which do not grow by as many for each token'
    )
  return CacheBytes(per_token, constant)


def decoding_rate(
  model: Decoder, params: PyTree, *, rows: int = 1, context: int = 128, tokens: int = 64, rounds: int = 5
) -> float:
  """New tokens per second of greedy decoding with the cache, over all rows; the median of some rounds.

  Measured is one compiled loop that writes `tokens` tokens of each row after `context` others. Compiling it and reading
  the context are left out.

  Raises:
    ValueError: for fewer than one row or round, and what `tfm.decoding.loop.check` refuses.
  """
  if rows < 1 or rounds < 1:
    raise ValueError(f'rows={rows} and rounds={rounds} must be at least 1')
  prompts = np.random.default_rng(0).integers(0, model.vocab, (rows, context)).astype(np.int32)
  loop.validate_inputs(model, prompts, tokens)
  model, params = unroll_layers(model, params)
  keys = row_keys(0, list(prompts), [0] * rows)
  keys = keys[np.minimum(np.arange(loop.round_up_rows(rows)), rows - 1)]

  def begin():
    return loop.prefill(model, params, list(prompts), tokens)

  def write(state):
    _, made, count = loop.decode_chunk(
      model, params, state, keys, Sampling(temperature=0.0), -1, tokens, tokens
    )
    return made, count

  return rows * tokens / median_seconds(write, begin, rounds)


def step_cost(step: Callable, state: PyTree, batch: PyTree, rounds: int = 5) -> StepCost:
  """Time and memory of a training step on one batch, again and again.

  Args:
    step: jitted, (state, batch) → (state, metrics), such as `jax.jit(train_step(…), donate_argnums=0)`.
    state: where the first step begins; gone after it, where the step is given it to keep.
  """
  again, told = repeated(step, state, batch)
  seconds = median_seconds(lambda _: again(), lambda: None, rounds)
  # Not `peak_memory_in_bytes`: on the CPU it leaves temporaries out that are alive beside the arguments.
  held = (
    told.argument_size_in_bytes
    + told.output_size_in_bytes
    - told.alias_size_in_bytes
    + told.temp_size_in_bytes
  )
  return StepCost(seconds, held, told.temp_size_in_bytes)


def repeated(step: Callable, state: PyTree, batch: PyTree) -> tuple[Callable[[], PyTree], Any]:
  """A function that takes one more step at each call, and what the compiler tells of its memory; as `step_cost`."""
  compiled = step.lower(state, batch).compile()
  after = [state]

  def again():
    after[0], metrics = compiled(after[0], batch)
    return after[0], metrics

  return again, compiled.memory_analysis()


def in_turns(runs: Sequence[Callable[[], PyTree]], rounds: int) -> list[float]:
  """The median seconds of each of some functions, called one after another in every round, after a first round that does
  not count: what else the machine does falls on all of them."""

  def seconds(run):
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start

  times = [[seconds(run) for run in runs] for _ in range(rounds + 1)]
  return [statistics.median(of_run) for of_run in zip(*times[1:])]


def median_seconds(run: Callable, begin: Callable, rounds: int) -> float:
  """The median time of `run(begin())`, to the end of what it computes, after a first that does not count; `begin` is
  not timed."""
  times = []
  for _ in range(rounds + 1):
    state = jax.block_until_ready(begin())
    start = time.perf_counter()
    jax.block_until_ready(run(state))
    times.append(time.perf_counter() - start)
  return statistics.median(times[1:])
