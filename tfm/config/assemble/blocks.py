"""Blocks of a model: mixers with their slots, feed-forward layers, norms; what they cannot honour is refused."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from ml_collections import ConfigDict

import tfm.feed_forwards
import tfm.kernels
import tfm.masks
import tfm.mixers
import tfm.positions
import tfm.residuals
import tfm.scores
from tfm import spec
from tfm.config.assemble.field_errors import build_field, require_one_of
from tfm.config.schema import default_config
from tfm.errors import require
from tfm.feed_forwards.protocol import FeedForward
from tfm.kernels.protocol import Kernel
from tfm.layers.initializer import INITIALIZERS, Factory
from tfm.masks.protocol import Mask, is_causal
from tfm.mixers.protocol import Mixer
from tfm.models.block import Block
from tfm.norms.protocol import norm_factory
from tfm.positions.protocol import Position
from tfm.residuals.protocol import PLACEMENTS, Residual
from tfm.scores.protocol import Score


if TYPE_CHECKING:
  from tfm.config.assemble.experiment import Experiment


DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16, 'float16': jnp.float16}


def build_block(
  experiment: 'Experiment',
  where: str,
  b: ConfigDict,
  causal: bool,
  outer: Factory | None = None,
  across: Callable | None = None,
) -> Callable:
  """The factory of one kind of block.

  Args:
    where: the config section that describes it.
    outer: the initializer of projections into the residual stream, if not the model's.
    across: the factory of the mixer that attends to a memory.
  """
  config = experiment.config
  m = config.model
  require_one_of(f'{where}.norm_placement', b.norm_placement, PLACEMENTS)
  residual = build_field(f'{where}.residual', spec.build, b.residual, tfm.residuals, Residual)
  placements, branches = residual.placements, residual.required_branches
  require(
    b.norm_placement in placements,
    f'config.{where}.residual={b.residual!r} is defined for norm_placement='
    f'{" or ".join(map(repr, placements))}, not {b.norm_placement!r}',
  )
  require(
    across is None or branches is None or 'cross' in branches,
    f'config.{where}.residual={b.residual!r} is defined for a mixer and a feed-forward layer, and this block has a '
    "third branch, cross-attention; use 'sequential'",
  )
  outer = outer or build_initializer(experiment, 'initializer')
  made = build_mixer(experiment, where, b, causal, outer)
  sizes = dict(
    width=m.width,
    hidden=b.feed_forward_width,
    bias=b.bias,
    initializer=build_initializer(experiment, 'initializer'),
    output_initializer=outer,
    dtype=DTYPES[m.dtype],
  )
  layer = build_field(
    f'{where}.feed_forward', spec.factory, b.feed_forward, tfm.feed_forwards, FeedForward, **sizes
  )
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
    made,
    layer if is_branch else None,
    build_norm(experiment, where, b),
    b.norm_placement,
    residual,
    m.dropout.residual,
    across,
  )


def build_mixer(
  experiment: 'Experiment', where: str, b: ConfigDict, causal: bool, outer: Factory
) -> Callable:
  """The factory of the mixer that a section describes."""
  config = experiment.config
  m = config.model
  require(
    b.kv_heads >= 1 and b.heads % b.kv_heads == 0,
    f'config.{where}.kv_heads={b.kv_heads} must divide config.{where}.heads={b.heads}',
  )
  require(b.head_width >= 1, f'config.{where}.head_width={b.head_width} must be at least 1')
  slots = dict(
    position=build_position(experiment, where, b),
    score=build_field(f'{where}.score', spec.factory, b.score, tfm.scores, Score, head_width=b.head_width),
    mask=build_mask(experiment, where, b, causal),
    kernel=build_field(f'{where}.kernel', spec.build, b.kernel, tfm.kernels, Kernel),
  )
  made = build_field(
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
    initializer=build_initializer(experiment, 'initializer'),
    output_initializer=outer,
    dtype=DTYPES[m.dtype],
    **slots,
  )
  validate_slots(experiment, where, b, made.func, slots)
  require(
    not causal or not made().is_noncausal,
    f'config.{where}.mixer={b.mixer!r} lets tokens see later ones whatever the mask, which a decoder may not; an '
    'encoder may',
  )
  return made


def build_cross_attention(experiment: 'Experiment', outer: Factory) -> Callable:
  """The factory of the mixer through which a decoder attends to its encoder's output."""
  config = experiment.config
  c = config.model.cross
  kind = build_field(
    'model.cross.mixer',
    lambda text: spec.find_variant(spec.parse(text).name, tfm.mixers, Mixer, text),
    c.mixer,
  )
  require(
    kind.supports_cross_attention, f"config.model.cross.mixer={c.mixer!r} reads no memory; 'softmax' would do"
  )
  made = build_mixer(experiment, 'model.cross', c, causal=False, outer=outer)
  require(
    'embed' not in made.keywords['position'].func.active_hooks(),
    f'config.model.cross.position={c.position!r} enters at the embedding, where cross-attention has no say; '
    "'none' or one that enters elsewhere would do",
  )
  return made


def validate_slots(
  experiment: 'Experiment', where: str, b: ConfigDict, mixer: type[Mixer], parts: Mapping[str, Any]
) -> None:
  """Refuses what is said of a block and the mixer has no place for."""
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
    f'config.{where}.mixer={b.mixer!r} does not keep the documents of a row apart, and config.data.packing='
    f"{config.data.packing!r} puts several into one; 'concat' would do",
  )
  require(
    mixer.supports_grouped_heads or b.kv_heads == b.heads,
    f'config.{where}.mixer={b.mixer!r} has no groups of heads, so kv_heads={b.kv_heads} would be ignored; '
    f'leave it out, or set it to heads={b.heads}',
  )
  extra = parts['position'].func.active_hooks() - {'embed'} - mixer.position_hooks
  require(
    not extra,
    f'config.{where}.mixer={b.mixer!r} does not ask a position for its {" or ".join(sorted(extra))}, '
    f"where position={b.position!r} enters; 'none' or one that enters at the embedding would do",
  )
  require(
    mixer.projects_position_table or not parts['position']().uses_qk_projections,
    f'config.{where}.mixer={b.mixer!r} does not lend its projections, which position={b.position!r} borrows; '
    "'softmax' does, or the position may have its own",
  )
  known = (
    None
    if mixer.supported_masks is None
    else [spec.build(text, tfm.masks, Mask) for text in mixer.supported_masks]
  )
  require(
    known is None or parts['mask'] in known,
    f'config.{where}.mixer={b.mixer!r} cannot honour mask={b.mask!r}; '
    f'{" or ".join(map(repr, mixer.supported_masks or ()))} would do',
  )


def build_distinct_positions(
  experiment: 'Experiment', kinds: Sequence[tuple[str, ConfigDict]]
) -> tuple[Callable, ...]:
  """The factory of every positional scheme in use, each once, as what it embeds and shares is made once."""
  found = {}
  for where, b in kinds:
    made = build_position(experiment, where, b)
    first, sizes = found.setdefault(made().sharing_key, (made, (b.heads, b.head_width)))
    require(
      sizes == (b.heads, b.head_width) or made.func.compute_shared is Position.compute_shared,
      f'config.{where}.position={b.position!r} is one table for all its blocks, and they differ in heads or '
      'head_width; give them the same',
    )
  return tuple(made for made, _ in found.values())


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
  """A block's mask; a decoder's must not look ahead, and what it reads must come from somewhere."""
  config = experiment.config
  made = build_field(f'{where}.mask', spec.build, b.mask, tfm.masks, Mask)
  require(
    not causal or is_causal(made, config.data.length),
    f'config.{where}.mask={b.mask!r} lets a token see later ones, which a decoder may not; '
    f"'causal & ({b.mask})' would do",
  )
  missing = made.required_fields - experiment.objective.mask_fields
  require(
    not missing,
    f'config.{where}.mask={b.mask!r} wants to know the {" and ".join(sorted(missing))} of each '
    f"document, which config.objective={config.objective!r} does not tell; 'prefix_lm' would do",
  )
  return made


def build_norm(experiment: 'Experiment', where: str, b: ConfigDict) -> Callable:
  """The factory of a norm: its spec's arguments bound."""
  return build_field(f'{where}.norm', norm_factory, b.norm, b.bias)


def build_initializer(experiment: 'Experiment', field: str) -> Callable:
  """An initializer factory by name."""
  config = experiment.config
  return build_field(f'model.{field}', spec.build_from_table, config.model[field], INITIALIZERS)
