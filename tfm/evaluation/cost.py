"""The cost of a model: cache bytes per token, decoded tokens per second, time and memory of a training step.

Bytes are computed from shapes or reported by the compiler; rates are measured on the current machine.
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
from tfm.decoding.unroll_layers import unroll_layers
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
  """The cost of a compiled step.

  Attributes:
    seconds: of one step, the median of several.
    peak_bytes: memory of one device as reported by the compiler: arguments, outputs that do not alias an
      argument, and temporaries.
    temporary_bytes: the temporaries among them.
  """

  seconds: float
  peak_bytes: int
  temporary_bytes: int


def count_cache_bytes(model: Decoder) -> CacheBytes:
  """The bytes of the caches of all layers for one sequence, from shapes; nothing is allocated.

  Counts everything in the cache: keys, values, and 12 bytes per token of positions and segments in every
    layer that stores tokens. A mask does not reduce a cache: all tokens are stored, whatever the window.
    Recurrent mixers store no tokens, and `per_token` is 0. The memory of an encoder-decoder's source is not
    counted.

  Raises:
    ValueError: if a mixer has no cache, or one that does not grow linearly with the length.
  """

  def size(length):
    return memory.total_bytes(jax.eval_shape(lambda: model.init_caches(1, length)))

  short, long = 64, 128
  per_token, rest = divmod(size(long) - size(short), long - short)
  constant = size(short) - per_token * short
  if rest or size(2 * long) != constant + per_token * 2 * long:
    raise ValueError(
      f'the caches of {short}, {long} and {2 * long} tokens have {size(short)}, {size(long)} and '
      f'{size(2 * long)} bytes, which is not linear in the length'
    )
  return CacheBytes(per_token, constant)


def measure_decoding_rate(
  model: Decoder, params: PyTree, *, rows: int = 1, context: int = 128, tokens: int = 64, rounds: int = 5
) -> float:
  """New tokens per second of greedy decoding with the cache, over all rows; the median of several rounds.

  Times one compiled loop that decodes `tokens` tokens of each row after a context of `context` tokens,
  without compilation and prefill.

  Raises:
    ValueError: for fewer than one row or round, and as `tfm.decoding.loop.validate_inputs`.
  """
  if rows < 1 or rounds < 1:
    raise ValueError(f'rows={rows} and rounds={rounds} must be at least 1')
  prompts = np.random.default_rng(0).integers(0, model.vocab, (rows, context)).astype(np.int32)
  loop.validate_inputs(model, prompts, tokens)
  model, params = unroll_layers(model, params)
  keys = row_keys(0, list(prompts), [0] * rows)
  keys = keys[np.minimum(np.arange(loop.round_up_rows(rows)), rows - 1)]

  def prefill():
    return loop.prefill(model, params, list(prompts), tokens, loop.plan_prefill(model, prompts))

  def decode(state):
    _, new_tokens, count = loop.decode_chunk(
      model, params, state, keys, Sampling(temperature=0.0), -1, tokens, tokens
    )
    return new_tokens, count

  return rows * tokens / measure_median_seconds(decode, prefill, rounds)


def measure_step_cost(step: Callable, state: PyTree, batch: PyTree, rounds: int = 5) -> StepCost:
  """Time and memory of a training step, repeated on one batch.

  Args:
    step: jitted, (state, batch) → (state, metrics), such as `jax.jit(train_step(…), donate_argnums=0)`.
    state: the initial state; deleted by the first step if the step donates it.
  """
  run_step, analysis = compile_repeated_step(step, state, batch)
  seconds = measure_median_seconds(lambda _: run_step(), lambda: None, rounds)
  # Not `peak_memory_in_bytes`: on the CPU it omits temporaries that are alive together with the arguments.
  peak = (
    analysis.argument_size_in_bytes
    + analysis.output_size_in_bytes
    - analysis.alias_size_in_bytes
    + analysis.temp_size_in_bytes
  )
  return StepCost(seconds, peak, analysis.temp_size_in_bytes)


def compile_repeated_step(step: Callable, state: PyTree, batch: PyTree) -> tuple[Callable[[], PyTree], Any]:
  """A function that runs one more step per call, and the compiler's memory analysis; arguments as
  `measure_step_cost`.
  """
  compiled = step.lower(state, batch).compile()
  current = [state]

  def run_step():
    current[0], metrics = compiled(current[0], batch)
    return current[0], metrics

  return run_step, compiled.memory_analysis()


def time_interleaved(runs: Sequence[Callable[[], PyTree]], rounds: int) -> list[float]:
  """The median seconds of several functions, called in turn in every round after a warm-up round, so that
  other load on the machine affects all of them.
  """

  def seconds(run):
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start

  times = [[seconds(run) for run in runs] for _ in range(rounds + 1)]
  return [statistics.median(of_run) for of_run in zip(*times[1:])]


def measure_median_seconds(run: Callable, prepare: Callable, rounds: int) -> float:
  """The median seconds of `run(prepare())` until its result is ready, after a warm-up; `prepare` is not
  timed.
  """
  times = []
  for _ in range(rounds + 1):
    state = jax.block_until_ready(prepare())
    start = time.perf_counter()
    jax.block_until_ready(run(state))
    times.append(time.perf_counter() - start)
  return statistics.median(times[1:])
