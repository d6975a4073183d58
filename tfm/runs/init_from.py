"""The parameters that training starts from, of another run, and what of them a run keeps as its own."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.data.special import lacking
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokenizers.protocol import load as load_tokenizer
from tfm.errors import require
from tfm.layers.lora import SCALE, merged
from tfm.models.trunk import Trunk
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.shapes import PyTree
from tfm.training import checkpoint
from tfm.training import state as states
from tfm.training.optimizer import path_name
from tfm.training.progress import print_status
from tfm.training.state import State


# Where the parameters of what a model answers are: an objective of its own may want its own.
HEADS = 'classification', 'next_sentence', 'transform', 'bias', 'output'
# Fields of the model that may be others than those of the run that training starts from.
OWN = (
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
)


@dataclasses.dataclass(frozen=True)
class Start:
  """The parameters that training starts from, of another run; its tokenizers are this one's.

  A run that trains some of them keeps these alone, and those that the other has not; the rest stays where it is.

  Attributes:
    params: of the other run by their paths, on the host; workdir: its folder.
    tokenizer, source_tokenizer: its own; published: what `tfm import` told of it.
  """

  params: Mapping[str, np.ndarray]
  workdir: str
  tokenizer: Tokenizer | None
  source_tokenizer: Tokenizer | None
  published: Mapping[str, Any] | None

  def adopted(self, params: PyTree, trains: Callable[[str], bool]) -> PyTree:
    """Initial parameters, of which all that the other run has are the other's; it is said which are new, and which
    of the other's have no place.

    Raises:
      ValueError: for a parameter of another shape, unless it is of a head, or a new one that is frozen.
    """
    fresh, left = [], set(self.params)

    def one(path, leaf):
      name = path_name(path)
      left.discard(name)
      if self.has(name, leaf):
        return jax.device_put(self.params[name].astype(leaf.dtype), leaf.sharding)
      fresh.append(name)
      require(
        trains(name) or name.endswith(SCALE),
        f'config.optimizer.frozen freezes {name}, which {self.workdir} does not have: '
        'it would stay as it was drawn; leave it out',
      )
      return leaf

    made = jax.tree_util.tree_map_with_path(one, params)
    for names, what in (
      (fresh, 'has not, and here they are new'),
      (left, 'has, and here they are of no use'),
    ):
      if names:
        print_status(f'parameters that {self.workdir} {what}: {", ".join(sorted(names))}')
    return made

  def has(self, name: str, leaf: Any) -> bool:
    """Whether a parameter is there.

    Raises:
      ValueError: if it is in another shape, unless it is of a head.
    """
    found = self.params.get(name)
    same = found is not None and found.shape == leaf.shape
    require(
      found is None or same or name.split('/')[0] in HEADS,
      f'config.init_from={self.workdir!r} has the parameter {name} in the shape {found is not None and found.shape}, and here '
      f'it is {leaf.shape}; the models must be alike',
    )
    return same

  def part(self, state: State, trains: Callable[[str], bool]) -> State:
    """A state without what stays with the other run."""
    return state.replace(params=self.pruned(state.params, trains))

  def pruned(self, params: PyTree, trains: Callable[[str], bool], above: str = '') -> PyTree:
    """Parameters that are trained, or that the other run has not."""
    made = {}
    for name, leaf in params.items():
      path = f'{above}{name}'
      if isinstance(leaf, Mapping):
        if part := self.pruned(leaf, trains, f'{path}/'):
          made[name] = part
      elif trains(path) or not self.has(path, leaf):
        made[name] = leaf
    return made

  def completed(self, state: State, target: State) -> State:
    """A state with what stays with the other run, under the shardings of `target`."""
    return state.replace(params=self.filled(state.params, target.params))

  def filled(self, params: PyTree, target: PyTree, above: str = '') -> PyTree:
    """Parameters of which those that are missing are the other run's."""

    def one(name, leaf):
      if isinstance(leaf, Mapping):
        return self.filled(params.get(name, {}), leaf, f'{above}{name}/')
      if name in params:
        return params[name]
      return jax.device_put(self.params[f'{above}{name}'].astype(leaf.dtype), leaf.sharding)

    return {name: one(name, leaf) for name, leaf in target.items()}


def start_from(config: ConfigDict) -> Start:
  """What config.init_from names.

  Raises:
    ValueError: if there is no such run, or its model or tokenizer is another.
  """
  workdir = pathlib.Path(config.init_from)
  require(
    (workdir / 'checkpoints').is_dir(),
    f'config.init_from={config.init_from!r} holds no run; tfm train or tfm import makes one',
  )
  with contextlib.closing(checkpoint.Checkpoints(workdir)) as checkpoints:
    number = checkpoints.find('last')
    saved = checkpoints.run(number)
    old = resolve_config(complete(saved['config']))
    for line in list_differences(old.to_dict(), config.to_dict()):
      path = line.partition(':')[0]
      other = path.startswith('model.') and path.split('.')[1] not in OWN
      require(
        not other and path not in ('data.tokenizer', 'data.source_tokenizer'),
        f'config.init_from={config.init_from!r} is of another model: {line}; its config.json has what is its own',
      )
    made = tokenizers(saved)
    mesh = meshes.make(dict(data=1), jax.local_devices()[:1])
    params = merged(read(checkpoints, number, old, make_model(old, *made), mesh))
  found = {path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(jax.device_get(params))}
  return Start(found, config.init_from, *made, saved.get('published'))


def read(
  checkpoints: checkpoint.Checkpoints,
  step: int,
  config: ConfigDict,
  model: Trunk,
  mesh: Mesh,
  average: int = 1,
) -> PyTree:
  """All parameters of a run at a step, the mean of its last `average` checkpoints; what was frozen is read where it is.

  Raises:
    ValueError: for fewer checkpoints, and if the run that it started from is gone or another.
  """
  boxed = jax.eval_shape(
    lambda key: states.init_params(model, key, 1, config.data.length, Experiment(config).lora),
    jax.random.key(0),
  )
  target = checkpoint.restore_target(
    nn.unbox(boxed), sharding.named_shardings(boxed, mesh, sharding.parse_rules(config.rules))
  )
  if not (config.init_from and Experiment(config).frozen_pattern):
    return checkpoints.averaged(step, average, target)
  start = start_from(config)
  own = start.pruned(target, Experiment(config).build_optimizer()[0].trains)
  return start.filled(checkpoints.averaged(step, average, own), target)


def tokenizers(saved: Mapping[str, Any]) -> tuple[Tokenizer | None, Tokenizer | None]:
  """The tokenizer that a checkpoint carries, and that of the source."""
  return tuple(
    load_tokenizer(saved[name]) if saved.get(name) else None for name in ('tokenizer', 'source_tokenizer')
  )


def make_model(config: ConfigDict, tokenizer: Tokenizer | None, source_tokenizer: Tokenizer | None) -> Trunk:
  """The model for the vocabularies of some tokenizers."""
  vocab, source_vocab = (one.vocab_size if one else 0 for one in (tokenizer, source_tokenizer))
  names = Experiment(config).objective.special_tokens
  return Experiment(config).build_model(
    vocab - len(names) + len(lacking(tokenizer, names)), source_vocab=source_vocab
  )
