"""What can be drawn of a config: its masks, positional schemes and learning-rate schedule."""

import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

import tfm.masks
import tfm.positions
from tfm import spec
from tfm.analysis.drawable_fields import find_field
from tfm.config.assemble import Experiment
from tfm.config.assemble.mixers import build_position
from tfm.config.field_errors import build_field
from tfm.config.overlay import assign
from tfm.config.resolve import resolve_config
from tfm.config.schema import parts
from tfm.errors import require
from tfm.evaluation.panels import CurvesPanel, MaskPanel, Panel, TablePanel
from tfm.layers.locations import Locations
from tfm.masks.protocol import Mask
from tfm.models.trunk import Trunk
from tfm.positions.protocol import Position


class Undrawable(ValueError):
  """A variant that cannot be drawn without a trained run."""


def draw_mask(experiment: Experiment, where: str, section: ConfigDict) -> list[Panel]:
  """The mask of a section."""
  mask = build_field(f'{where}.mask', spec.build, section.mask, tfm.masks, Mask)
  return [MaskPanel(section.mask, mask, experiment.config.data.length)]


def draw_position(experiment: Experiment, where: str, section: ConfigDict) -> list[Panel]:
  """What a positional scheme does in each hook that it has: its bias, what it adds to tokens, and how its
  rotation changes the logit of equal queries and keys. Learned parameters have their initial values, seed 0.

  Raises:
    Undrawable: for a scheme whose bias depends on queries and keys.
  """
  position = build_position(experiment, where, section)()
  if position.reads_content:
    raise Undrawable(
      f'config.{where}.position={section.position!r} has a bias that depends on queries and keys, which only '
      'a trained run has; tfm attend draws its attention'
    )
  return [draw(position, section.position) for hook, draw in HOOKS.items() if hook in position.active_hooks()]


def draw_bias(position: Position, title: str) -> Panel:
  """The bias of the logits of a query in the middle of the row, by head, over the distance of the key."""
  T, H, C = position.length, position.heads, position.head_width
  middle = T // 2

  def bias(module):
    q, k = jnp.zeros((1, H, 1, 1, C)), jnp.zeros((1, H, T, C))
    places = (jnp.array([[middle]]), jnp.arange(T)[None])
    return module.bias(module.compute_table())(q, k, *(Locations(x, jnp.ones_like(x)) for x in places))

  values, note = _evaluate(position, bias)
  curves = {f'head {head}': row for head, row in enumerate(values.reshape(H, T))}
  return CurvesPanel(
    f'{title}: bias of the logits', 'key − query position', np.arange(T) - middle, curves, note
  )


def draw_rotation(position: Position, title: str) -> Panel:
  """The logit of a query and a key whose channels are all 1, over their distance, divided by that at 0."""
  T, C = position.length, position.head_width
  middle = T // 2

  def rotate(module):
    places = jnp.array([[middle]]), jnp.arange(T)[None]
    q, k = module.rotate(jnp.ones((1, 1, 1, C)), jnp.ones((1, T, 1, C)), *places)
    return (q * k).sum(-1)

  values, note = _evaluate(position, rotate)
  logits = values.reshape(T)
  label = 'q·k of ones, relative to distance 0'
  return CurvesPanel(
    f'{title}: rotation',
    'key − query position',
    np.arange(T) - middle,
    {label: logits / logits[middle]},
    note,
  )


def draw_embedding(position: Position, title: str) -> Panel:
  """What is added to each token."""
  T, D = position.length, position.width
  values, note = _evaluate(position, lambda module: module.embed(jnp.zeros((1, T, D)), jnp.arange(T)[None]))
  return TablePanel(f'{title}: added to tokens{note and f", {note}"}', values.reshape(T, D))


HOOKS = {'embed': draw_embedding, 'rotate': draw_rotation, 'bias': draw_bias}


def _evaluate(position: Position, function: Callable[[Position], jax.Array]) -> tuple[np.ndarray, str]:
  """The result of a function of an initialized module, and a note if it has parameters."""
  values, variables = position.init_with_output(jax.random.key(0), method=function)
  return np.asarray(values), 'as initialized with seed 0' if jax.tree.leaves(variables) else ''


def draw_schedule(experiment: Experiment, where: str, section: ConfigDict) -> list[Panel]:
  """The learning rate of each step."""
  steps = np.arange(1, experiment.config.training.steps + 1)
  rates = np.asarray(experiment.learning_rate(steps - 1))
  return [CurvesPanel(section.schedule, 'step', steps, {'learning rate': rates})]


# Path of one of `drawable_fields.FIELDS` → experiment, section's path, section → panels.
DRAW = {'model.mask': draw_mask, 'model.position': draw_position, 'optimizer.schedule': draw_schedule}


def draw_spec(text: str, config: ConfigDict) -> list[Panel]:
  """The panels of one spec, with the sizes of a config.

  Raises:
    ValueError: as `find_field`, or for a spec that cannot be built or drawn.
  """
  path, config = find_field(text), config.copy_and_resolve_references()
  assign(config, path, text)
  experiment, where = Experiment(resolve_config(config)), path.rpartition('.')[0]
  panels = DRAW[path](experiment, where, experiment.config[where])
  require(bool(panels), f'{text!r} does nothing that could be drawn')
  return panels


def draw_config(experiment: Experiment, model: Trunk) -> tuple[list[Panel], list[str]]:
  """The panels of a config, and why some are missing: masks and positional schemes of every kind of block,
  each once, and the schedule.
  """
  panels, titles, missing = {}, {}, {}
  schedule = ('', 'optimizer', experiment.config.optimizer, None)
  for title, where, section, mixer in (*attention_sections(experiment.config, model), schedule):
    for path, draw in DRAW.items():
      field = path.rpartition('.')[2]
      # A mixer may have no use for a field of its block.
      if field not in section or mixer is not None and not hasattr(mixer, field):
        continue
      try:
        for panel in draw(experiment, where, section):
          key = panel.title, section.get('heads'), section.get('head_width')
          panels.setdefault(key, panel)
          titles.setdefault(key, {})[title] = None  # a pattern may repeat a block
      except Undrawable as error:
        missing[str(error)] = None
  titled = [
    dataclasses.replace(panel, title=f'{", ".join(filter(None, titles[key]))}: {panel.title}'.lstrip(': '))
    for key, panel in panels.items()
  ]
  return titled, list(missing)


def attention_sections(config: ConfigDict, model: Trunk) -> Iterator[tuple[str, str, ConfigDict, object]]:
  """(title, path, section, mixer) of every kind of block, and of cross-attention."""
  for where, part in parts(config).items():
    title = where.removeprefix('model').removeprefix('.')
    if where == 'model.cross':
      yield title, where, part, model.stack().pattern[0]().cross()
    elif 'pattern' in part:
      stack = (model if where == 'model' else model.encoder()).stack()
      for name, block in zip(part.pattern or (title,), stack.pattern):
        section = config.model.blocks[name] if part.pattern else part
        yield name, f'model.blocks.{name}' if part.pattern else where, section, block().mixer()
