"""Builds blocks: a mixer, a feed-forward layer, norms, residuals; unsupported combinations raise."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

import tfm.feed_forwards
import tfm.residuals
from tfm import spec
from tfm.config.assemble.mixers import (
  DTYPES,
  Initializers,
  build_cross_attention,
  build_initializer,
  build_mixer,
)
from tfm.config.field_errors import build_field
from tfm.config.schema import encoder_sections
from tfm.errors import require
from tfm.feed_forwards.protocol import FeedForward
from tfm.layers.canon import Canon, pass_through
from tfm.layers.initializer import scale_initializer
from tfm.models.block import Block
from tfm.models.value_residual import VALUE_RESIDUALS, ValueResidual
from tfm.norms.protocol import norm_factory
from tfm.residuals.protocol import Depth, Residual


if TYPE_CHECKING:
  from tfm.config.assemble.experiment import Experiment


def build_block(
  experiment: 'Experiment',
  where: str,
  b: ConfigDict,
  causal: bool,
  added: int | None = None,
  crosses: bool = False,
  shares_keys: bool = False,
) -> Callable:
  """The factory of one kind of block.

  Args:
    where: the config section that describes it.
    added: how many branches the stack adds to the residual stream, if initial values depend on it.
    crosses: whether a second mixer attends to a memory.
    shares_keys: whether blocks of the stack attend to keys and values of others.
  """
  config = experiment.config
  m = config.model
  depth = find_depth(m, where)
  residual = build_field(f'{where}.residual', spec.build, b.residual, tfm.residuals, Residual, depth=depth)
  placements, branches = residual.placements, residual.required_branches
  require(
    b.norm_placement in placements,
    f'config.{where}.residual={b.residual!r} is defined for norm_placement='
    f'{" or ".join(map(repr, placements))}, not {b.norm_placement!r}',
  )
  require(
    not (causal and residual.looks_ahead),
    f'config.{where}.residual={b.residual!r} looks at later tokens, which the objective '
    f"{config.objective!r} forbids; use another residual, such as 'sequential'",
  )
  conditioned = m.architecture == 'diffusion'
  require(
    conditioned or not residual.reads_condition,
    f'config.{where}.residual={b.residual!r} reads a time and a class, which '
    f"config.model.architecture={m.architecture!r} does not have; use 'sequential', or 'diffusion'",
  )
  require(
    residual.reads_condition or not conditioned,
    f'config.{where}.residual={b.residual!r} ignores the time and the class on which '
    f"config.model.architecture={m.architecture!r} is conditioned; use 'adaln_zero'",
  )
  require(
    not crosses or branches is None or 'cross' in branches,
    f'config.{where}.residual={b.residual!r} is defined for a mixer and a feed-forward layer, and this '
    "block has a third branch, cross-attention; use 'sequential'",
  )
  plain = build_initializer(experiment, 'initializer')
  into_stream, inside = (1, 1) if added is None else residual.initial_scales(added)
  initializers = Initializers(plain, scale_initializer(plain, inside), scale_initializer(plain, into_stream))
  mixer = build_mixer(experiment, where, b, causal, initializers)
  require(
    inside == 1 or 'value_initializer' in mixer.func.__dataclass_fields__,
    f'config.{where}.residual={b.residual!r} scales the initial projections to values, and '
    f"mixer={b.mixer!r} has none; use 'softmax', or config.model.depth_scaled=False",
  )
  across = build_cross_attention(experiment, initializers) if crosses else None
  sizes = dict(
    width=m.width,
    hidden=b.feed_forward_width,
    bias=b.bias,
    initializer=initializers.inside,
    output_initializer=initializers.into_stream,
    dtype=DTYPES[m.dtype],
    transform=pass_through,
  )
  layer = build_field(
    f'{where}.feed_forward', spec.factory, b.feed_forward, tfm.feed_forwards, FeedForward, **sizes
  )
  require(
    not (causal and layer.func.reads_other_tokens),
    f'config.{where}.feed_forward={b.feed_forward!r} chooses among all tokens of a row, later ones too, '
    f"which config.objective={config.objective!r} forbids; use 'mixture_of_experts', or an encoder",
  )
  require(
    not layer.func.reads_other_tokens or experiment.packing.layout == 'contiguous',
    f'config.{where}.feed_forward={b.feed_forward!r} does not separate the documents of a row, and '
    f"config.data.packing={config.data.packing!r} puts several into a row; use 'concat', or 'each'",
  )
  scales = {}
  if experiment.parametrization.has_unit_weights:
    validate_unit_weights(experiment, where, b, mixer, layer, residual)
    scales = find_hidden_scales(b.feed_forward_width, m.width, layer)
  is_branch = layer.func.is_branch
  width = f'config.{where}.feed_forward_width={b.feed_forward_width}'
  require(not is_branch or b.feed_forward_width >= 1, f'{width} must be at least 1')
  require(
    is_branch or b.feed_forward_width == 0,
    f'{width} has no effect with feed_forward={b.feed_forward!r}, which is no layer; leave it out',
  )
  require(
    is_branch or branches is None or 'feed_forward' not in branches,
    f'config.{where}.residual={b.residual!r} adds a mixer and a feed-forward layer at once, and '
    f"feed_forward={b.feed_forward!r} leaves the mixer alone; use 'sequential'",
  )
  return functools.partial(
    Block,
    mixer,
    layer if is_branch else None,
    build_norm(experiment, where, b),
    b.norm_placement,
    residual,
    m.dropout.residual,
    across,
    build_canon(experiment, where, b, mixer, layer),
    build_value_residual(experiment, where, b, mixer),
    shares_keys,
    b.own_keys,
    scales,
  )


def build_value_residual(
  experiment: 'Experiment', where: str, b: ConfigDict, mixer: Callable
) -> Callable | None:
  """The factory of what mixes the values of a layer with those of the first; None if nothing does."""
  m = experiment.config.model
  if not m.value_residual:
    return None
  kind = build_field('model.value_residual', spec.build_from_table, m.value_residual, VALUE_RESIDUALS)
  require(
    'v' in mixer().transformed_shapes,
    f'config.model.value_residual={m.value_residual!r} mixes values, which config.{where}.mixer={b.mixer!r} '
    "does not have; use 'softmax', or leave it out",
  )
  initializer = build_initializer(experiment, 'initializer')
  return functools.partial(ValueResidual, kind.share, initializer, DTYPES[m.dtype])


def validate_unit_weights(
  experiment: 'Experiment',
  where: str,
  b: ConfigDict,
  mixer: Callable,
  feed_forward: Callable,
  residual: Residual,
) -> None:
  """Raises ValueError for fields of a block that have no rule under `UnitWeights`."""
  text = experiment.config.model.parametrization
  layer = feed_forward()
  for field, is_supported, instead in (
    ('residual', residual.has_unit_length, "'spherical' with norm_placement='res_post'"),
    ('mixer', mixer().supports_unit_weights, '\'softmax(qk_norm="rmsnorm")\''),
    ('feed_forward', not layer.is_branch or 'up' in layer.transformed_shapes, "'swiglu'"),
    ('bias', not b.bias, 'False'),
    ('canon', not b.canon, "''"),
  ):
    require(
      is_supported,
      f'config.{where}.{field}={b[field]!r} has no rule for config.model.parametrization={text!r}; use '
      f'{instead}',
    )


def find_hidden_scales(hidden: int, width: int, feed_forward: Callable) -> dict[str, tuple[int, str, float]]:
  """Projection → the arguments of its `LearnedScale` under `UnitWeights`: √D before the activation."""
  return {
    f'feed_forward_{name}': (hidden, 'mlp', width**0.5 if name == 'up' else 1.0)
    for name in feed_forward().transformed_shapes
  }


def find_depth(m: ConfigDict, where: str) -> Depth:
  """The layers of the model that a config section belongs to."""
  if m.architecture == 'encoder_decoder':
    return Depth(m.encoder.layers, m.layers, where in encoder_sections(m))
  encodes = m.architecture in ('encoder', 'diffusion')
  return Depth(m.layers, 0, True) if encodes else Depth(0, m.layers, False)


def build_canon(
  experiment: 'Experiment', where: str, b: ConfigDict, mixer: Callable, feed_forward: Callable
) -> dict[str, Callable]:
  """Place in a block → the factory of its Canon layer; the letters are those of Allen-Zhu 2025."""
  m, mixer, feed_forward = experiment.config.model, mixer(), feed_forward()
  own = (m.width,), ('embed',)
  places = {
    'A': {'mixer': own},
    'B': {f'mixer_{name}': shape for name, shape in mixer.transformed_shapes.items()},
    'C': {'feed_forward': own} if feed_forward.is_branch else {},
    'D': {f'feed_forward_{name}': shape for name, shape in feed_forward.transformed_shapes.items()},
  }
  field = f'config.{where}.canon={b.canon!r}'
  require(
    set(b.canon) <= set(places) and len(b.canon) == len(set(b.canon)),
    f'{field} must be letters of {"".join(places)!r}, each at most once',
  )
  for letter in b.canon:
    require(
      bool(places[letter]),
      f'{field} has no place {letter!r} in a block of mixer={b.mixer!r} and feed_forward={b.feed_forward!r}; '
      'leave it out',
    )
  return {
    place: functools.partial(Canon, *shape, DTYPES[m.dtype])
    for letter in b.canon
    for place, shape in places[letter].items()
    if b.own_keys or place not in ('mixer_k', 'mixer_v')
  }


def build_norm(experiment: 'Experiment', where: str, b: ConfigDict) -> Callable:
  """The factory of a norm: its spec's arguments bound."""
  return build_field(f'{where}.norm', norm_factory, b.norm, b.bias)
