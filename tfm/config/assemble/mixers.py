"""Builds mixers with what fills their slots: position, score, mask, kernel; what does not fit raises."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from ml_collections import ConfigDict

import tfm.kernels
import tfm.masks
import tfm.mixers
import tfm.positions
import tfm.scores
from tfm import spec
from tfm.config.field_errors import build_field
from tfm.config.schema import default_config
from tfm.errors import require
from tfm.kernels.protocol import Kernel
from tfm.layers.canon import pass_through
from tfm.layers.initializer import INITIALIZERS, Factory
from tfm.masks.protocol import Mask, is_causal, is_empty
from tfm.mixers.protocol import Mixer
from tfm.positions.protocol import Position
from tfm.scores.protocol import Score


if TYPE_CHECKING:
  from tfm.config.assemble.experiment import Experiment


DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16, 'float16': jnp.float16}


class Initializers(NamedTuple):
  """Of the projections of a block: in general; to values and hidden layers; into the residual stream."""

  plain: Factory
  inside: Factory
  into_stream: Factory


def build_mixer(
  experiment: 'Experiment', where: str, b: ConfigDict, causal: bool, initializers: 'Initializers'
) -> Callable:
  """The factory of the mixer that a section describes."""
  config = experiment.config
  m = config.model
  require(
    b.kv_heads >= 1 and b.heads % b.kv_heads == 0,
    f'config.{where}.kv_heads={b.kv_heads} must divide config.{where}.heads={b.heads}',
  )
  slots = dict(
    position=build_position(experiment, where, b),
    score=build_score(experiment, where, b),
    mask=build_mask(experiment, where, b, causal),
    kernel=build_field(f'{where}.kernel', spec.build, b.kernel, tfm.kernels, Kernel),
  )
  mixer = build_field(
    f'{where}.mixer',
    spec.factory,
    b.mixer,
    tfm.mixers,
    Mixer,
    width=m.width,
    heads=b.heads,
    kv_heads=b.kv_heads,
    head_width=b.head_width,
    bias=b.bias,
    dropout=m.dropout.attention,
    initializer=initializers.plain,
    value_initializer=initializers.inside,
    output_initializer=initializers.into_stream,
    dtype=DTYPES[m.dtype],
    transform=pass_through,
    **slots,
  )
  validate_slots(experiment, where, b, mixer.func, slots)
  validate_mup(experiment, f'{where}.mixer', b.mixer, mixer.func.supports_mup)
  # A bias that reads queries and keys has a scale of its own.
  validate_mup(experiment, f'{where}.position', b.position, not slots['position'].func.reads_content)
  require(
    not causal or not mixer().is_noncausal,
    f'config.{where}.mixer={b.mixer!r} lets tokens attend to later ones whatever the mask; use '
    'another mixer in a decoder',
  )
  return mixer


def build_score(experiment: 'Experiment', where: str, b: ConfigDict) -> Callable:
  """The factory of a block's score."""
  scale = experiment.parametrization.score_scale(b.head_width)
  make = build_field(
    f'{where}.score', spec.factory, b.score, tfm.scores, Score, head_width=b.head_width, default_scale=scale
  )
  validate_mup(experiment, f'{where}.score', b.score, make.func.supports_mup)
  return make


def validate_mup(experiment: 'Experiment', field: str, value: str, is_supported: bool) -> None:
  """Raises ValueError for a variant that has no rule under config.model.parametrization."""
  text = experiment.config.model.parametrization
  require(
    is_supported or not experiment.parametrization.depends_on_width,
    f"config.{field}={value!r} has no rule for config.model.parametrization={text!r}; use 'standard'",
  )


def build_cross_attention(experiment: 'Experiment', initializers: 'Initializers') -> Callable:
  """The factory of the mixer through which a decoder attends to its encoder's output."""
  config = experiment.config
  c = config.model.cross
  kind = build_field(
    'model.cross.mixer',
    lambda text: spec.find_variant(spec.parse(text).name, tfm.mixers, Mixer, text),
    c.mixer,
  )
  require(
    kind.supports_cross_attention,
    f"config.model.cross.mixer={c.mixer!r} does not support cross-attention; use 'softmax'",
  )
  mixer = build_mixer(experiment, 'model.cross', c, causal=False, initializers=initializers)
  require(
    'embed' not in mixer.keywords['position'].func.active_hooks(),
    f'config.model.cross.position={c.position!r} acts on the embedding, which cross-attention does not have; '
    "use 'none' or one that acts elsewhere",
  )
  return mixer


def validate_slots(
  experiment: 'Experiment', where: str, b: ConfigDict, mixer: type[Mixer], parts: Mapping[str, Any]
) -> None:
  """Raises ValueError for fields of a block that its mixer does not support."""
  config = experiment.config
  fields = mixer.__dataclass_fields__
  for slot in ('score', 'kernel'):
    default = default_config().model[slot]
    require(
      slot in fields or b[slot] == default,
      f'config.{where}.mixer={b.mixer!r} has no {slot}, so {slot}={b[slot]!r} would be ignored; '
      f'leave it at {default!r}',
    )
  require(
    mixer.supports_packing or experiment.packing.layout == 'contiguous',
    f'config.{where}.mixer={b.mixer!r} does not separate the documents of a row, and config.data.packing='
    f"{config.data.packing!r} puts several into a row; use 'concat'",
  )
  require(
    mixer.supports_grouped_heads or b.kv_heads == b.heads,
    f'config.{where}.mixer={b.mixer!r} does not support grouped heads, so kv_heads={b.kv_heads} would be '
    f'ignored; leave it out, or set it to heads={b.heads}',
  )
  extra = parts['position'].func.active_hooks() - {'embed'} - mixer.position_hooks
  require(
    not extra,
    f'config.{where}.mixer={b.mixer!r} does not support the {" and ".join(sorted(extra))} of '
    f"position={b.position!r}; use 'none' or one that acts on the embedding",
  )
  require(
    mixer.projects_position_table or not parts['position']().uses_qk_projections,
    f'config.{where}.mixer={b.mixer!r} does not project the table of position={b.position!r}; '
    "use 'softmax', or a position with its own projections",
  )
  known = (
    None
    if mixer.supported_masks is None
    else [spec.build(text, tfm.masks, Mask) for text in mixer.supported_masks]
  )
  require(
    known is None or parts['mask'] in known,
    f'config.{where}.mixer={b.mixer!r} does not support mask={b.mask!r}; use '
    f'{" or ".join(map(repr, mixer.supported_masks or ()))}',
  )


def build_distinct_positions(
  experiment: 'Experiment', kinds: Sequence[tuple[str, ConfigDict]]
) -> tuple[Callable, ...]:
  """The factories of all different positional schemes: each embeds, and computes what layers share, once."""
  positions = {}
  for where, b in kinds:
    position = build_position(experiment, where, b)
    first, sizes = positions.setdefault(position().table_key, (position, (b.heads, b.head_width)))
    require(
      sizes == (b.heads, b.head_width) or position.func.compute_table is Position.compute_table,
      f'config.{where}.position={b.position!r} shares one table among its blocks, which differ in heads or '
      'head_width; give them the same',
    )
  return tuple(position for position, _ in positions.values())


def build_position(experiment: 'Experiment', where: str, b: ConfigDict) -> Callable:
  """The factory of a block's positional scheme."""
  config = experiment.config
  return build_field(
    f'{where}.position',
    spec.factory,
    b.position,
    tfm.positions,
    Position,
    width=config.model.width,
    heads=b.heads,
    head_width=b.head_width,
    length=config.data.length,
  )


def build_mask(experiment: 'Experiment', where: str, b: ConfigDict, causal: bool) -> Mask:
  """A block's mask. A decoder's must be causal; the objective must provide the fields that it needs."""
  config = experiment.config
  mask = build_field(f'{where}.mask', spec.build, b.mask, tfm.masks, Mask)
  require(
    not causal or is_causal(mask, config.data.length),
    f'config.{where}.mask={b.mask!r} lets a token attend to later ones, which a decoder must not; '
    f"use 'causal & ({b.mask})'",
  )
  require(
    not is_empty(mask, config.data.length),
    f'config.{where}.mask={b.mask!r} hides every token from every other; use a mask that shows some, such as '
    "'causal'",
  )
  missing = mask.required_fields - experiment.objective.mask_fields
  require(
    not missing,
    f'config.{where}.mask={b.mask!r} needs the {" and ".join(sorted(missing))} of each '
    f"document, which config.objective={config.objective!r} does not provide; use 'prefix_lm'",
  )
  return mask


def build_initializer(experiment: 'Experiment', field: str) -> Callable:
  """An initializer factory by name."""
  config = experiment.config
  factory = build_field(f'model.{field}', spec.build_from_table, config.model[field], INITIALIZERS)
  return experiment.parametrization.scale_initializer(factory)
