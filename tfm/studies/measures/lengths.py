"""Length extrapolation: the loss in rows of other lengths than the training length."""

import dataclasses

from ml_collections import ConfigDict

from tfm import spec
from tfm.config.assemble import Experiment
from tfm.data.special_tokens import base_tokenizer
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
    scaling: a scaling that rotary positions are given after training, such as
      'yarn(factor=8, original=128)'; metrics then begin with its name: `yarn_loss_at_length`. Other positions
      have none; one that depends on the length of the text needs its `length`.
  """

  lengths: tuple[Size, ...] = ()
  protocol: str = 'nonoverlapping'
  stride: Size | None = None
  targets: NonNegativeInt = 65_536
  split: str = 'validation'
  scaling: str = ''

  def validate(self, experiment, model):
    length_extrapolation.validate_model(model, (self.protocol,))

  def metric_names(self, validation):
    return ()

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    L = run.config.data.length
    lengths = self.lengths or (L // 2, L, 2 * L, 4 * L, 8 * L)
    prefix = 'sliding_' if self.protocol == 'sliding' else ''
    if self.scaling:
      prefix += f'{spec.parse(self.scaling).name}_'
      if not is_rotary(run.config):
        why = f'config.model.position={run.config.model.position!r} has no scaling'
        return lambda params: [Value(f'{prefix}loss_at_length', None, x, why) for x in lengths]
      run = scale_rotary_positions(run, self.scaling)

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


def is_rotary(config: ConfigDict) -> bool:
  """Whether all positions of the model are one rotary scheme."""
  own = [block.position for block in config.model.blocks.values() if 'position' in block]
  return spec.parse(config.model.position).name == 'rope' and not own


def scale_rotary_positions(run: runs.Run, scaling: str) -> runs.Run:
  """The run with another scaling of its rotary positions.

  Raises:
    ValueError: for a scaling that does not exist or does not fit.
  """
  config = run.config.copy_and_resolve_references()
  call = spec.parse(config.model.position)
  config.model.position = str(dataclasses.replace(call, kwargs={**call.kwargs, 'scaling': scaling}))
  experiment = Experiment(config)
  model = runs.build_model(experiment, base_tokenizer(run.tokenizer), run.source_tokenizer)
  return dataclasses.replace(run, experiment=experiment, model=model)
