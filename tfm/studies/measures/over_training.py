"""Another measure at every checkpoint of a run."""

import dataclasses
import math

from tfm.errors import require
from tfm.runs import load as runs
from tfm.studies import store
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Measure, Value, build_measure


@dataclasses.dataclass(frozen=True)
class OverTraining(protocol.Measure):
  """The scalar metrics of another measure at every checkpoint of a run, named METRIC_at_step, such as
  `prefix_matching_at_step` of over_training("induction(length=8)"): when in training a head has formed.

  Attributes:
    measure: the spec of the other measure.

  Raises (from `validate`):
    ValueError: if the config keeps fewer checkpoints than its runs save.
  """

  measure: str = 'induction'

  def __post_init__(self):
    require(
      not isinstance(self.other, OverTraining),
      f'measure={self.measure!r} is itself measured over training; name another measure',
    )

  @property
  def other(self) -> Measure:
    return build_measure(self.measure)

  def validate(self, experiment, model):
    self.other.validate(experiment, model)
    training = experiment.config.training
    saved = math.ceil(training.steps / training.evaluate_every)
    require(
      training.save_every != 'evaluation' or training.keep_checkpoints >= saved,
      f'over_training({self.measure!r}) needs every checkpoint of a run, which saves {saved}, and '
      f'config.training.keep_checkpoints={training.keep_checkpoints}; set it to {saved}',
    )

  def metric_names(self, validation):
    return ()

  def prepare(self, run):
    return self.other.prepare(run)

  def measure_run(self, measure, run, run_dir):
    return [
      Value(f'{value.metric}_at_step', value.value, step, value.why)
      for step in store.saved_steps(run_dir)
      for value in measure(runs.load(run_dir, str(step)).params)
      if value.x is None
    ]
