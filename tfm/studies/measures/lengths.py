"""The loss in rows of other lengths than those of training."""

import dataclasses

from tfm.evaluation import length
from tfm.runs import load as runs
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Lengths(protocol.Measure):
  """`loss_at_length` at every length, of the same targets, and `loss_by_position` in rows of the longest one that can
  be read (Press et al. 2022, §2.2); with protocol='sliding' each as `sliding_…`.

  Attributes:
    lengths: of the rows; () is a half, one, two, four and eight times that of training.
    protocol, stride: as `tfm evaluate --lengths` has them.
    targets: how many count, spread over the split; 0 for all.
  """

  lengths: tuple[int, ...] = ()
  protocol: str = 'nonoverlapping'
  stride: int | None = None
  targets: int = 65_536
  split: str = 'validation'

  def check(self, config, model):
    length.validate_inputs(model, (self.protocol,))

  def plain(self, validation):
    return ()

  def prepare(self, run):
    self.check(run.config, run.model)
    L = run.config.data.length
    lengths, before = (
      self.lengths or (L // 2, L, 2 * L, 4 * L, 8 * L),
      'sliding_' if self.protocol == 'sliding' else '',
    )

    def measure(params):
      records = runs.evaluate_lengths(
        dataclasses.replace(run, params=params),
        self.split,
        lengths,
        (self.protocol,),
        self.stride,
        self.targets,
      )
      found = [
        Value(f'{before}loss_at_length', record.loss, record.length, record.impossible) for record in records
      ]
      read = [record for record in records if not record.impossible]
      if read:
        longest = max(read, key=lambda record: record.length)
        found += [
          Value(f'{before}loss_by_position', part.loss, (part.first + part.last) / 2)
          for part in longest.positions
        ]
      return found

    return measure
