"""A validation metric in parts of the evaluation text, for intervals that hold for other texts, too."""

import contextlib
import dataclasses

import jax
import numpy as np

from tfm.data import pipeline
from tfm.data.row_share import process_share
from tfm.errors import suggest
from tfm.evaluation.evaluate_split import sum_batches
from tfm.parallel import sharding
from tfm.runs import load as runs
from tfm.runs.measure_split import evaluation_batch_size
from tfm.spec import Size
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value
from tfm.training.step import evaluation_step


@dataclasses.dataclass(frozen=True)
class Parts(protocol.Measure):
  """METRIC_in_part and tokens_in_part of consecutive batches of the validation of training, as even parts.

  A report adds how the differences of arms vary over the parts to how they vary over seeds.

  Attributes:
    metric: of the validation, a mean over tokens: 'loss', 'accuracy', 'exact', ….
    count: of parts, or as many as there are batches.
  """

  metric: str = 'loss'
  count: Size = 64

  def validate(self, experiment, model):
    if experiment.source.parts:
      raise ValueError(
        f"measures='parts' does not support config.data.source={experiment.config.data.source!r}, whose loss "
        'is a mean over sources; remove the measure'
      )

  def metric_names(self, validation):
    if self.metric not in validation:
      raise ValueError(
        f"measures='parts({self.metric!r})' names no metric of the validation; "
        f'{suggest(self.metric, validation)}'
      )
    return ()

  def prepare(self, run):
    config, objective, data = run.config, run.experiment.objective, runs.open_data(run)
    rows = objective.rows(
      run.experiment.packing, data.tokens('validation'), config.data.length, None, data.tokenizer
    )
    step = jax.jit(evaluation_step(run.model, objective))

    def measure(params):
      with sharding.context(run.mesh, run.rules):
        where = sharding.batch_sharding(run.mesh, run.rules)
        size = evaluation_batch_size(config, where)
        share, training = process_share(where, size), config.training
        batches = pipeline.evaluation_batches(
          rows, size, share, config.data.reader_threads, training.evaluation_batches
        )
        with contextlib.closing(batches):
          sums = [sum_batches(params, step, [batch], where, share) for batch in batches]
      values = []
      for i, part in enumerate(np.array_split(np.arange(len(sums)), min(self.count, len(sums)))):
        total = {name: sum(sums[batch][name] for batch in part) for name in sums[0]}
        values.append(Value(f'{self.metric}_in_part', float(objective.summarize(total, 0)[self.metric]), i))
        values.append(Value('tokens_in_part', float(total['tokens']), i))
      return values

    return measure
