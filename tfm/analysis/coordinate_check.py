"""The coordinate check: do activations keep their size as a model gets wider, while it trains?"""

import dataclasses
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from tfm.config.assemble import Experiment
from tfm.data import pipeline
from tfm.data.row_share import RowShare
from tfm.errors import require
from tfm.models.block import Block
from tfm.models.trunk import Trunk
from tfm.shapes import Array, Float, PyTree


@dataclasses.dataclass(frozen=True)
class Coordinates:
  """How far activations moved from their initial values, as root mean squares.

  Attributes:
    widths: W widths of the model.
    changes: name of an activation → [W, steps].
  """

  widths: tuple[int, ...]
  changes: Mapping[str, Float[np.ndarray, 'W steps']]

  def exponents(self) -> dict[str, float]:
    """Name → the p of change ∝ width^p after the last step, by least squares of logarithms: 0 is flat."""
    log_widths = np.log(self.widths)
    return {name: float(np.polyfit(log_widths, np.log(x[:, -1]), 1)[0]) for name, x in self.changes.items()}


def measure_coordinates(configs: Sequence[ConfigDict], steps: int) -> Coordinates:
  """Trains each config on one batch and measures the outputs of blocks, and the logits (Yang et al. 2022,
  app. D.1).

  Args:
    configs: resolved, alike but for model.width.
    steps: of training.

  Raises:
    ValueError: for models that are no decoders, and for stacked layers, whose outputs are not seen.
  """
  widths, changes = [], []
  for config in configs:
    model = config.model
    require(
      model.architecture == 'decoder' and not model.patch,
      f'config.model.architecture={model.architecture!r} is not supported; use a decoder',
    )
    require(not model.scan, 'config.model.scan=True hides the outputs of blocks; set it to False')
    widths.append(model.width)
    changes.append(_train(Experiment(config), steps))
  return Coordinates(tuple(widths), {name: np.array([one[name] for one in changes]) for name in changes[0]})


def _train(experiment: Experiment, steps: int) -> dict[str, list[float]]:
  """Name of an activation → its distance from the initial one after each step on the same batch."""
  config = experiment.config
  data = pipeline.open_data(experiment.source, experiment.tokenizer)
  model = experiment.build_model(data.tokenizer.vocab_size)
  rows = experiment.objective.rows(
    experiment.packing, data.tokens('train'), config.data.length, 0, data.tokenizer
  )
  batch = jax.tree.map(jnp.asarray, pipeline.Batches(rows, RowShare.all(config.training.batch_size))[0])
  state = nn.unbox(jax.jit(experiment.build_init(model))(jax.random.key(config.seed)))
  step = jax.jit(experiment.build_step(model))
  look = jax.jit(lambda params: activations(model, params, batch['inputs']))
  first, changes = look(state.params), {}
  for _ in range(steps):
    state, _ = step(state, batch)
    for name, x in look(state.params).items():
      changes.setdefault(name, []).append(float(jnp.sqrt(jnp.mean(jnp.square(x - first[name])))))
  return changes


def activations(model: Trunk, params: PyTree, tokens: Array) -> dict[str, Array]:
  """The output of each block, by path, and the logits of documents that are the rows."""

  def is_captured(module, method):
    return isinstance(module, Block) and method == '__call__'

  (logits, _), variables = model.apply(
    {'params': params}, *model.arguments(tokens), capture_intermediates=is_captured, mutable=['intermediates']
  )
  blocks, _ = jax.tree_util.tree_flatten_with_path(
    variables['intermediates'], is_leaf=lambda x: isinstance(x, tuple)
  )
  found = {}
  for path, calls in blocks:
    x, _ = calls[0]
    found['/'.join(str(entry.key) for entry in path[:-1])] = x
  return found | {'logits': logits}
