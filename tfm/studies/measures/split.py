"""The objective's metrics on a whole split."""

import dataclasses

from tfm.parallel import sharding
from tfm.runs import load as runs
from tfm.runs.measure_split import build_evaluate_fn
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Split(protocol.Measure):
  """The metrics of `tfm evaluate --split=SPLIT`, named SPLIT_METRIC.

  Attributes:
    split: 'validation' or 'test'.
  """

  split: str = 'test'

  def metric_names(self, validation):
    return [f'{self.split}_{metric}' for metric in validation]

  def prepare(self, run):
    with sharding.context(run.mesh, run.rules):
      where = sharding.batch_sharding(run.mesh, run.rules)
      evaluate = build_evaluate_fn(
        run.experiment, run.model, runs.open_data(run), where, self.split, batches=0
      )

    def measure(params):
      with sharding.context(run.mesh, run.rules):
        return [Value(f'{self.split}_{metric}', value) for metric, value in evaluate(params).items()]

    return measure
