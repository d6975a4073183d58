"""Length extrapolation: the loss in rows of other lengths than the training length."""

import dataclasses

from tfm.evaluation import length_extrapolation
from tfm.runs import load as runs
from tfm.spec import NonNegativeInt, Size
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Lengths(protocol.Measure):
  """`loss_at_length` at every length, over the same targets, and `loss_by_position` in rows of the longest
  supported length (Press et al. 2022, §2.2); with protocol='sliding' both have the prefix `sliding_`.

  Attributes:
    lengths: of the rows; (): 0.5, 1, 2, 4 and 8 times the training length.
    protocol, stride: as in `tfm evaluate --lengths`.
    targets: number of evaluated targets, spread over the split; 0 for all.
    split: the split to evaluate.
  """

  lengths: tuple[Size, ...] = ()
  protocol: str = 'nonoverlapping'
  stride: Size | None = None
  targets: NonNegativeInt = 65_536
  split: str = 'validation'

  def validate(self, experiment, model):
    length_extrapolation.validate_model(model, (self.protocol,))

  def metric_names(self, validation):
    return ()

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    L = run.config.data.length
    lengths = self.lengths or (L // 2, L, 2 * L, 4 * L, 8 * L)
    prefix = 'sliding_' if self.protocol == 'sliding' else ''

    def measure(params):
      records = runs.evaluate_lengths(
        dataclasses.replace(run, params=params),
        self.split,
        lengths,
        (self.protocol,),
        self.stride,
        self.targets,
      )
      values = [
        Value(f'{prefix}loss_at_length', record.loss, record.length, record.impossible) for record in records
      ]
      possible = [record for record in records if not record.impossible]
      if possible:
        longest = max(possible, key=lambda record: record.length)
        values += [
          Value(f'{prefix}loss_by_position', part.loss, (part.first + part.last) / 2)
          for part in longest.positions
        ]
      return values

    return measure
