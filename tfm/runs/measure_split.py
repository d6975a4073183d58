"""The metrics of a model on a split, from the sums of its objective."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from tfm.config.assemble import Experiment
from tfm.data import pipeline
from tfm.data.mixture import split_mixture
from tfm.data.pipeline import ImageData, TextData
from tfm.data.row_share import process_share
from tfm.data.special_tokens import extend_tokenizer
from tfm.evaluation.evaluate_split import ByteCounter, Total, measure, mix_totals
from tfm.models.trunk import Trunk
from tfm.objectives.protocol import Objective
from tfm.training.step import evaluation_step


def build_evaluate_fn(
  experiment: Experiment,
  model: Trunk,
  data: TextData | ImageData,
  where: jax.sharding.Sharding,
  split: str,
  batches: int,
) -> Callable[..., dict[str, float]]:
  """A function: (params, reference=None) → metrics of a split, by name, as `summarize_totals`; arguments as
  of `build_measure_fn`.
  """
  measure_split = build_measure_fn(experiment, model, data, where, split, batches)
  return lambda params, reference=None: summarize_totals(
    experiment.objective, measure_split(params, reference)
  )


class SplitTotals(NamedTuple):
  """What a pass over a split adds up to, and over each source of a mixture, or over '', all of the data."""

  whole: Total
  parts: Mapping[str, Total]


def summarize_totals(objective: Objective, totals: SplitTotals) -> dict[str, float]:
  """The metrics of a split, by name; of a mixture also loss/NAME of each of its sources."""

  def summarize(total):
    return {name: float(value) for name, value in objective.summarize(total.sums, total.bytes).items()}

  return summarize(totals.whole) | {
    f'loss/{name}': summarize(total)['loss'] for name, total in totals.parts.items() if name
  }


def build_measure_fn(
  experiment: Experiment,
  model: Trunk,
  data: TextData | ImageData,
  where: jax.sharding.Sharding,
  split: str,
  batches: int,
) -> Callable[..., SplitTotals]:
  """A function: (params, reference=None) → the totals of a split; `reference` is the frozen model that the
  objective compares with, if it has one.

  Args:
    where: the sharding of an array [B, …].
    batches: how many batches, spread over the split, of each source; 0 for the whole split.
  """
  config, objective = experiment.config, experiment.objective
  weights, parts = split_mixture(data.tokens(split))
  rows = {
    name: objective.rows(experiment.packing, tokens, config.data.length, None, data.tokenizer)
    for name, tokens in parts.items()
  }
  evaluate = jax.jit(evaluation_step(model, objective))
  counts_bytes = data.tokenizer is not None and data.tokenizer.is_lossless
  token_bytes = (
    extend_tokenizer(data.tokenizer, objective.special_tokens).token_bytes if counts_bytes else None
  )
  size = evaluation_batch_size(config, where)

  def measure_split(params, reference=None):
    step = functools.partial(evaluate, reference=reference)
    share = process_share(where, size)
    totals = {}
    for name, part in rows.items():
      iterator = pipeline.evaluation_batches(part, size, share, config.data.reader_threads, batches)
      with contextlib.closing(iterator):
        totals[name] = measure(params, step, iterator, where, ByteCounter(token_bytes, share))
    return SplitTotals(mix_totals(totals, weights), totals)

  return measure_split


def evaluation_batch_size(config: ConfigDict, where: jax.sharding.Sharding) -> int:
  """Rows of an evaluation batch: a microbatch, rounded up to a multiple of the devices that split it.

  More devices may load a run than trained it.

  Args:
    where: the sharding of an array [B, …].
  """
  unit = where.num_devices // where.shard_shape((where.num_devices,))[0]
  if where.mesh.shape['stage'] > 1:
    unit *= max(1, config.pipeline.microbatches)
  return -(-config.training.batch_size // config.training.gradient_accumulation // unit) * unit
