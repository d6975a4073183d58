"""Starting from another run: its parameters and tokenizers, and which parameters a run saves as its own."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.data.special_tokens import missing_tokens
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokenizers.protocol import load as load_tokenizer
from tfm.errors import require
from tfm.layers.lora import SCALE, merge_adapters
from tfm.models.trunk import Trunk
from tfm.parallel import sharding
from tfm.shapes import Array, PyTree
from tfm.training import checkpoint
from tfm.training import state as states
from tfm.training.gradient_transforms import path_name
from tfm.training.progress_line import print_status
from tfm.training.state import State


# The top-level parameters of output heads; an objective may need others than the pretrained run has.
HEADS = 'classification', 'next_sentence', 'transform', 'bias', 'output'
# Fields of the model in which a run may differ from the run it starts from.
MAY_DIFFER = (
  'dropout',
  'dtype',
  'scan',
  'remat',
  'kernel',
  'initializer',
  'embedding_initializer',
  'depth_scaled',
  'vocab_multiple',
  'pooling',
  'pooled_transform',
  'output_transform',
  'output_bias',
  'quantization',
)


@dataclasses.dataclass(frozen=True)
class PretrainedRun:
  """A run whose last parameters and tokenizers another run starts from.

  A run with frozen parameters saves only the parameters that it trains or that the pretrained run lacks; the
  others are read from the pretrained run each time.

  Attributes:
    shapes: path → shape and dtype of a parameter.
    restore: (mesh, rules) → path → parameter, each under its sharding on that mesh.
    workdir: the directory of the run; step: of its checkpoint.
    tokenizer, source_tokenizer: those it was trained with.
    published: the metadata of `tfm import`, or None.
  """

  shapes: Mapping[str, jax.ShapeDtypeStruct]
  restore: Callable[[Mesh, sharding.Rules], Mapping[str, Array]]
  workdir: str
  step: int
  tokenizer: Tokenizer | None
  source_tokenizer: Tokenizer | None
  published: Mapping[str, Any] | None

  def report_differences(self, params: PyTree, is_trainable: Callable[[str], bool]) -> None:
    """Prints which parameters of a model this run lacks, and which of its own the model has not.

    Args:
      params: of the model, or their shapes.
      is_trainable: path → whether the parameter is trained.

    Raises:
      ValueError: for a parameter of another shape, unless it belongs to a head, or for a new one that is
        frozen.
    """
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    new = [name for name, leaf in leaves.items() if not self.has_param(name, leaf)]
    for name in new:
      require(
        is_trainable(name) or name.endswith(SCALE),
        f'config.optimizer.frozen freezes {name}, which {self.workdir} does not have, so it would keep its '
        'random initial values; exclude it from config.optimizer.frozen',
      )
    for names, meaning in (
      (new, f'parameters that are new, because {self.workdir} lacks them'),
      (self.shapes.keys() - leaves.keys(), f'parameters of {self.workdir} that are not used'),
    ):
      if names:
        print_status(f'{meaning}: {", ".join(sorted(names))}')

  def has_param(self, name: str, leaf: Any) -> bool:
    """Whether the pretrained run has a parameter of this path and shape.

    Raises:
      ValueError: if it has one of another shape that does not belong to a head.
    """
    pretrained = self.shapes.get(name)
    same_shape = pretrained is not None and pretrained.shape == leaf.shape
    require(
      pretrained is None or same_shape or name.split('/')[0] in HEADS,
      f'config.init_from={self.workdir!r} has the parameter {name} of shape '
      f'{pretrained is not None and pretrained.shape}, '
      f'and this model has it of shape {leaf.shape}; use a model of the same shape',
    )
    return same_shape

  def drop_pretrained(self, state: State) -> State:
    """A state without the parameters that the pretrained run has."""
    return self.drop_frozen(state, is_trainable=lambda name: False)

  def drop_frozen(self, state: State, is_trainable: Callable[[str], bool]) -> State:
    """A state without the parameters that are read from the pretrained run each time."""
    return state.replace(params=self.drop_frozen_params(state.params, is_trainable))

  def drop_frozen_params(
    self, params: PyTree, is_trainable: Callable[[str], bool], prefix: str = ''
  ) -> PyTree:
    """The parameters that are trained or that the pretrained run lacks."""
    remaining = {}
    for name, leaf in params.items():
      path = f'{prefix}{name}'
      if isinstance(leaf, Mapping):
        if subtree := self.drop_frozen_params(leaf, is_trainable, f'{path}/'):
          remaining[name] = subtree
      elif is_trainable(path) or not self.has_param(path, leaf):
        remaining[name] = leaf
    return remaining


def fill_params(params: PyTree, target: PyTree, pretrained: Mapping[str, Array], prefix: str = '') -> PyTree:
  """Parameters in the structure, dtypes and shardings of `target`; those missing from `params` are the
  pretrained ones of the same path."""

  def fill(name, leaf):
    if isinstance(leaf, Mapping):
      return fill_params(params.get(name, {}), leaf, pretrained, f'{prefix}{name}/')
    if name in params:
      return params[name]
    return jax.device_put(pretrained[f'{prefix}{name}'].astype(leaf.dtype), leaf.sharding)

  return {name: fill(name, leaf) for name, leaf in target.items()}


def read_checkpoint(field: str, workdir: str, step: int | None, use: str) -> tuple[int, dict[str, Any]]:
  """The step and the metadata of a checkpoint of the run that a field of the config names.

  Args:
    step: None: the last one.
    use: what this run does with the parameters, for the message.

  Raises:
    ValueError: if there is no such run or step.
  """
  path = pathlib.Path(workdir)
  require(
    (path / 'checkpoints').is_dir(),
    f'config.{field}: {workdir!r} holds no run; tfm train or tfm import makes one',
  )
  with contextlib.closing(checkpoint.Checkpoints(path)) as checkpoints:
    step = checkpoints.find_step('last') if step is None else step
    require(
      step in checkpoints.steps(),
      f'config.{field}: {workdir!r} has no longer its checkpoint {step}, {use}; put its folder back',
    )
    return step, checkpoints.read_metadata(step)


def load_pretrained(config: ConfigDict, metadata: Mapping[str, Any] = {}) -> PretrainedRun:
  """Opens the run that config.init_from names; no parameter is read yet.

  Args:
    metadata: of a checkpoint of the run that starts from it, which names the step; of the first such call:
      none, and the step is the last one.

  Raises:
    ValueError: if there is no such run or step, or if its model or tokenizer differs from the config's.
  """
  saved_step = metadata.get('init_from', {}).get('step')
  use = 'from whose parameters this run starts'
  step, metadata = read_checkpoint('init_from', config.init_from, saved_step, use)
  experiment = Experiment(resolve_config(complete(metadata['config'])))
  require(
    not (experiment.quantization and experiment.quantization.stored),
    f'config.init_from={config.init_from!r} stores integers, which cannot be trained; start from the run '
    'that it was made from',
  )
  for line in list_differences(experiment.config.to_dict(), config.to_dict()):
    path = line.partition(':')[0]
    may_differ = (*MAY_DIFFER, 'layers') if config.init_layers else MAY_DIFFER
    is_fixed = path.startswith('model.') and path.split('.')[1] not in may_differ
    require(
      not is_fixed and path not in ('data.tokenizer', 'data.source_tokenizer'),
      f'config.init_from={config.init_from!r} is of another model: {line}; use the value in its config.json',
    )
  tokenizers = load_tokenizers(metadata)
  model = build_model(experiment, *tokenizers)
  require_layers(config, model)

  def select(params):
    if not config.init_layers:
      return params
    return {**params, 'stack': model.stack().select_layers(params['stack'], config.init_layers)}

  def restore(mesh, rules):
    params = restore_merged_params(config.init_from, step, experiment, model, mesh, rules)
    return leaves_by_path(jax.jit(select)(params) if config.init_layers else params)

  shapes = jax.eval_shape(lambda x: select(merge_adapters(x)), nn.unbox(abstract_params(experiment, model)))
  published = metadata.get('published')
  return PretrainedRun(leaves_by_path(shapes), restore, config.init_from, step, *tokenizers, published)


def require_layers(config: ConfigDict, model: Trunk) -> None:
  """Raises ValueError if config.init_layers cannot be selected from the layers of a model."""
  layers, stack = config.init_layers, model.stack()
  if not layers:
    return
  given, period = f'config.init_layers={layers}', len(stack.pattern)
  require(
    not hasattr(model, 'encoder'),
    f'{given} selects layers of one stack, and architecture={config.model.architecture!r} has two; '
    'set it to ()',
  )
  require(
    len(layers) == config.model.layers,
    f'{given} has {len(layers)} layers and this model config.model.layers={config.model.layers}; use as many',
  )
  require(
    max(layers) < stack.layers,
    f'{given}: {config.init_from!r} has {stack.layers} layers, from 0 to {stack.layers - 1}; use these',
  )
  require(
    all(layer % period == i % period for i, layer in enumerate(layers)),
    f'{given}: the pattern repeats after {period} layers, and each layer must keep its place in it; use '
    f'numbers that leave the rests 0 to {period - 1} in turn when divided by {period}',
  )


def restore_merged_params(
  workdir: str, step: int, experiment: Experiment, model: Trunk, mesh: Mesh, rules: sharding.Rules
) -> PyTree:
  """All parameters of a run at a step as `restore_params`, its adapters merged."""
  with contextlib.closing(checkpoint.Checkpoints(pathlib.Path(workdir))) as checkpoints:
    return merge_adapters(restore_params(checkpoints, step, experiment, model, mesh, rules))


def leaves_by_path(tree: PyTree) -> dict[str, Any]:
  """Path → leaf."""
  return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def abstract_params(experiment: Experiment, model: Trunk) -> PyTree:
  """The shapes of an experiment's parameters, adapters included, boxed with their logical axes."""
  length, lora = experiment.config.data.length, experiment.lora
  return jax.eval_shape(lambda key: states.init_params(model, key, 1, length, lora), jax.random.key(0))


def restore_params(
  checkpoints: checkpoint.Checkpoints,
  step: int,
  experiment: Experiment,
  model: Trunk,
  mesh: Mesh,
  rules: sharding.Rules,
  average: int = 1,
) -> PyTree:
  """All parameters of a run, each read under its sharding: the mean of its last `average` checkpoints up to a
  step, and the frozen ones of config.init_from.

  Raises:
    ValueError: for fewer checkpoints, if the mesh does not divide a parameter, and if the run of
      config.init_from is missing or differs.
  """
  config, boxed = experiment.config, abstract_params(experiment, model)
  target = sharding.with_shardings(nn.unbox(boxed), sharding.named_shardings(boxed, mesh, rules))
  if not (config.init_from and experiment.frozen_pattern):
    return checkpoints.restore_averaged_params(step, average, target)
  pretrained = load_pretrained(config, checkpoints.read_metadata(step))
  saved_target = pretrained.drop_frozen_params(target, experiment.optimizer.is_trainable)
  saved = checkpoints.restore_averaged_params(step, average, saved_target)
  return fill_params(saved, target, pretrained.restore(mesh, rules))


def load_tokenizers(metadata: Mapping[str, Any]) -> tuple[Tokenizer | None, Tokenizer | None]:
  """The tokenizer and the source tokenizer in a checkpoint's metadata; None for one that is missing."""
  return tuple(
    load_tokenizer(metadata[name]) if metadata.get(name) else None
    for name in ('tokenizer', 'source_tokenizer')
  )


def build_model(
  experiment: Experiment, tokenizer: Tokenizer | None, source_tokenizer: Tokenizer | None
) -> Trunk:
  """The model for the vocabularies of these tokenizers."""
  vocab, source_vocab = (one.vocab_size if one else 0 for one in (tokenizer, source_tokenizer))
  names = experiment.objective.special_tokens
  return experiment.build_model(
    vocab - len(names) + len(missing_tokens(tokenizer, names)), source_vocab=source_vocab
  )
