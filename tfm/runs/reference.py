"""The run whose frozen model an objective compares with, such as a teacher."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import parts
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding.loop import list_position_limits
from tfm.errors import require
from tfm.models.trunk import Trunk
from tfm.objectives.protocol import Reference
from tfm.parallel import sharding
from tfm.runs.init_from import build_model, load_tokenizers, read_checkpoint, restore_merged_params
from tfm.training import state as states


@dataclasses.dataclass(frozen=True, eq=False)
class ReferenceRun:
  """A run of which an objective reads the frozen model.

  Attributes:
    workdir, step: of its checkpoint.
    experiment, model: of the run, with the kernels that this machine has.
    tokenizers: of its text and of its source, or None.
  """

  workdir: str
  step: int
  experiment: Experiment
  model: Trunk
  tokenizers: tuple[Tokenizer | None, Tokenizer | None]

  @property
  def abstract(self) -> Reference:
    """The shapes of the parameters, boxed with their logical axes; adapters are merged."""
    length = self.experiment.config.data.length
    return Reference(
      self.model,
      jax.eval_shape(lambda key: states.init_params(self.model, key, 1, length), jax.random.key(0)),
    )

  def restore(self, mesh: Mesh, rules: sharding.Rules) -> Reference:
    """The model with its parameters, each under its sharding on a mesh."""
    params = restore_merged_params(self.workdir, self.step, self.experiment, self.model, mesh, rules)
    return Reference(self.model, params)


def open_reference(experiment: Experiment, step: int | None = None) -> ReferenceRun | None:
  """The run that the objective compares with; no parameter is read yet. None: it has none.

  Args:
    step: None: the last one.

  Raises:
    ValueError: if there is no such run or step.
  """
  workdir = experiment.objective.reference_workdir
  if not workdir:
    return None
  step, metadata = read_checkpoint('objective', workdir, step, 'whose model this run is compared with')
  config = resolve_config(complete(metadata['config']))
  for section in parts(config).values():
    section.kernel = 'auto'  # that of its training may not be available here
  own, tokenizers = Experiment(config), load_tokenizers(metadata)
  return ReferenceRun(workdir, step, own, build_model(own, *tokenizers), tokenizers)


def load_reference(
  experiment: Experiment,
  model: Trunk,
  tokenizers: tuple[Tokenizer | None, Tokenizer | None],
  saved: Mapping[str, Any] | None = None,
) -> ReferenceRun | None:
  """As `open_reference`; also requires that the objective can compare its model with the one that is trained.

  Args:
    model, tokenizers: those that are trained.
    saved: the reference in the metadata of a checkpoint of the run that is trained; None: there is none yet,
      and the reference is the last step.

  Raises:
    ValueError: if there is no such run or step, if its tokenizer or vocabulary differs, or if the objective
      cannot compare the models.
  """
  opened, length = open_reference(experiment, saved['step'] if saved else None), experiment.config.data.length
  if not opened:
    return None
  workdir, reference = opened.workdir, opened.model

  def require_same(name, theirs, ours, remedy):
    require(
      theirs == ours,
      f'config.objective={experiment.config.objective!r}: the model of {workdir!r} has {name} {theirs}, and '
      f'this one {ours}; {remedy}',
    )

  architectures = (one.config.model.architecture for one in (opened.experiment, experiment))
  require_same('the architecture', *architectures, 'use the same')
  for field, theirs, ours in zip(
    ('tokenizer', 'source_tokenizer'), opened.tokenizers, tokenizers, strict=True
  ):
    theirs, ours = (one.identity if one else None for one in (theirs, ours))
    remedy = f'use config.data.{field} of its config.json and the same text, or start from it by init_from'
    require_same(f'the {field}', theirs, ours, remedy)
  require_same('the vocabulary', reference.vocab, model.vocab, 'use objectives with the same special tokens')
  require_same(
    'an embedding table with the number of rows', reference.rows, model.rows, 'use its model.vocab_multiple'
  )
  for name, limit in list_position_limits(reference.positions):
    require(
      length <= limit,
      f'config.data.length={length} exceeds the {limit} positions of {name} in the model of {workdir!r}; use '
      'shorter rows',
    )
  experiment.objective.validate_reference(model, reference, length)
  return opened
