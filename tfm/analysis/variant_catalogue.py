"""All variants of every slot with their properties, computed from the code."""

import dataclasses
import functools
import importlib
import inspect
import io

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from rich import box
from rich.console import Console
from rich.table import Table

import tfm.feed_forwards
import tfm.kernels
import tfm.masks
import tfm.mixers
import tfm.norms
import tfm.optimizers
import tfm.positions
import tfm.residuals
import tfm.scores
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.field_errors import build_field
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import default_config
from tfm.feed_forwards.protocol import FeedForward
from tfm.kernels.dense import Dense
from tfm.kernels.protocol import AttentionInputs, Kernel
from tfm.masks.protocol import Mask, is_causal
from tfm.mixers.protocol import Context, Mixer
from tfm.models.decoder import Decoder
from tfm.models.flops import with_kernel
from tfm.models.parameter_table import rows as parameter_rows
from tfm.norms.protocol import Norm
from tfm.optimizers.protocol import Optimizer
from tfm.parallel.sharding import parse_rules
from tfm.positions.protocol import Position
from tfm.residuals.protocol import Residual
from tfm.scores.protocol import Score
from tfm.training.progress_line import print_status


# Slot → its folder and its protocol: those that a field of `config.model` fills, and all that are listed.
MODEL_SLOTS = {
  'mixer': (tfm.mixers, Mixer),
  'position': (tfm.positions, Position),
  'mask': (tfm.masks, Mask),
  'score': (tfm.scores, Score),
  'kernel': (tfm.kernels, Kernel),
  'feed_forward': (tfm.feed_forwards, FeedForward),
  'norm': (tfm.norms, Norm),
  'residual': (tfm.residuals, Residual),
}
SLOTS = MODEL_SLOTS | {'optimizer': (tfm.optimizers, Optimizer)}
# The surroundings in which variants are built.
SURROUNDINGS = dict(mixer='softmax', position='rope', mask='causal')
# Sizes that every kernel takes, vendors' too.
LENGTH, VOCAB = 256, 32
PLAIN_MODEL = dict(
  layers=1, width=128, heads=2, head_width=64, dtype='bfloat16', vocab_multiple=8, scan=False
)
YES, NO = 'yes', '–'


@dataclasses.dataclass(frozen=True)
class Variant:
  """One file of a slot.

  Attributes:
    slot, name: where it is; kind: its class; spec: the first that the conformance suite tries.
  """

  slot: str
  name: str

  @functools.cached_property
  def kind(self) -> type:
    return spec.find_variant(self.name, *SLOTS[self.slot])

  @property
  def spec(self) -> str:
    return (self.kind.examples or (self.name,))[0]

  @property
  def arguments(self) -> str:
    """The arguments of a spec, with defaults."""
    model_fields = {*inspect.signature(SLOTS[self.slot][1]).parameters, 'parent', 'name'}
    # Besides the fields of their protocol, mixers get the other slots of attention from the model.
    others = {'position', 'mask', 'score', 'kernel', 'value_initializer'}
    surroundings = model_fields | (others if self.slot == 'mixer' else set())
    settable = [name for name in inspect.signature(self.kind).parameters if name not in surroundings]
    return spec.format_signature(self.kind, settable) if settable else ''

  @property
  def summary(self) -> str:
    """The first line of its file; '' if the file does not begin with a docstring."""
    first, *_ = (importlib.import_module(self.kind.__module__).__doc__ or '').splitlines() or ['']
    return first.rstrip('.')

  @functools.cached_property
  def fields(self) -> dict[str, str]:
    """The model fields of a minimal model with the variant."""
    is_mixer = self.slot == 'mixer'
    fields = surroundings(self.spec) if is_mixer else SURROUNDINGS | {self.slot: self.spec}
    has_kernel = not is_mixer or 'kernel' in self.kind.__dataclass_fields__
    return dict(score='dot', kernel='dense' if has_kernel else default_config().model.kernel) | fields


def surroundings(mixer: str) -> dict[str, str]:
  """The plainest mixer, position and mask with a mixer that its class supports."""
  kind = spec.find_variant(spec.parse(mixer).name, *SLOTS['mixer'])
  plain = SURROUNDINGS | {'mixer': mixer}
  if not kind.position_hooks:
    plain['position'] = 'none'
  if kind.supported_masks is not None and plain['mask'] not in kind.supported_masks:
    plain['mask'] = kind.supported_masks[0]
  return plain


def variants(slot: str) -> list[Variant]:
  """The files of a slot."""
  found = []
  for name in spec.variant_names(SLOTS[slot][0]):
    variant = Variant(slot, name)
    try:
      variant.kind  # imported here, so that a broken file leaves out itself alone
    except ValueError as error:
      print_status(f'left out: {error}')
    else:
      found.append(variant)
  return found


def model(variant: Variant, packing: str = 'concat') -> Decoder:
  """A minimal model with a variant, of sizes that every kernel supports, for a packing."""
  objective = (
    'prefix_lm'
    if build_field('model.mask', spec.build, variant.fields['mask'], tfm.masks, Mask).required_fields
    else 'causal_lm'
  )
  config = complete(
    dict(data=dict(length=LENGTH, packing=packing), model=PLAIN_MODEL | variant.fields, objective=objective)
  )
  return Experiment(resolve_config(config)).build_model(VOCAB, causal=False)


@dataclasses.dataclass(frozen=True, eq=False)
class Probe(Kernel):
  """The dense kernel; it also records why each other kernel does not support its arguments."""

  reasons: dict[str, str | None] = dataclasses.field(default_factory=dict)

  def attend(self, q, k, v, inputs):
    for variant in variants('kernel'):
      if variant.name != 'auto':
        kernel = build_field('model.kernel', spec.build, variant.name, tfm.kernels, Kernel)
        refusal = kernel.unsupported_reason(q, k, v, inputs)
        self.reasons[variant.name] = self.reasons.get(variant.name) or refusal
    return Dense().attend(q, k, v, inputs)


def kernels(variant: Variant) -> dict[str, str | None]:
  """kernel → why it does not support the variant in training, None if it does; {} for a mixer without a
  kernel.
  """
  probe = Probe()
  probed_model = with_kernel(model(variant), probe)
  tokens = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)
  jax.eval_shape(lambda key, t: probed_model.init(key, t, Context.contiguous(t)), jax.random.key(0), tokens)
  return probe.reasons


def supports_cache(variant: Variant) -> bool:
  """Whether a model with the variant can decode with a cache."""
  built_model = model(variant)
  tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  try:
    caches = jax.eval_shape(lambda: built_model.init_caches(1, LENGTH))
    jax.eval_shape(
      lambda key, t, c: built_model.init_with_output(key, t, Context.contiguous(t), c),
      jax.random.key(0),
      tokens,
      caches,
    )
  except (ValueError, NotImplementedError):
    return False
  return True


def supports_packing(variant: Variant) -> bool:
  """Whether a model with the variant is built for rows of several documents."""
  try:
    model(variant, 'first_fit')
  except ValueError:
    return False
  return True


def own_mesh_axes(variant: Variant) -> str:
  """The mesh axes that shard the variant's own parameters under the default rules; '' if it has none."""
  built_model = model(variant)
  tokens = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)
  boxed = jax.eval_shape(
    lambda key, t: built_model.init(key, t, Context.contiguous(t)), jax.random.key(0), tokens
  )['params']
  rules = parse_rules(default_config().rules)
  own = [
    row for row in parameter_rows(boxed, rules) if any(part.startswith(variant.slot) for part in row.path)
  ]
  axes = {axis for row in own for entry in row.spec for axis in entry.split('+')} - {'-'}
  return ' '.join(axis for axis in default_config().mesh if axis in axes) or ('replicated' if own else '')


def features(variant: Variant) -> str:
  """What a kernel supports beyond plain causal attention over rows of one document."""
  kernel = spec.build(variant.name, tfm.kernels, Kernel)
  return (
    'all'
    if not (refused := [name for name, change in FEATURES.items() if refusal(kernel, **change)])
    else (', '.join(name for name in FEATURES if name not in refused) or 'nothing')
  )


def refusal(kernel: Kernel, **change) -> str | None:
  """Why a kernel does not support plain attention with a change; None if it does."""
  tokens = jax.ShapeDtypeStruct((1, LENGTH), jnp.int32)
  heads = jax.ShapeDtypeStruct(
    (1, LENGTH, PLAIN_MODEL['heads'], PLAIN_MODEL['head_width']), jnp.dtype(PLAIN_MODEL['dtype'])
  )
  score = spec.factory('dot', tfm.scores, Score, head_width=PLAIN_MODEL['head_width'])().apply({})
  plain = dict(
    score=score,
    bias=None,
    mask=spec.build('causal', tfm.masks, Mask),
    layout='contiguous',
    q_positions=tokens,
    k_positions=tokens,
    q_segments=tokens,
    k_segments=tokens,
  )
  return kernel.unsupported_reason(heads, heads, heads, AttentionInputs(**plain | change))


_any_function = Partial(lambda *args: None)
FEATURES = {
  'windows': dict(mask=spec.build('causal & window(64)', tfm.masks, Mask)),
  'masks of positions': dict(mask=spec.build('causal & chunked(64)', tfm.masks, Mask)),
  'prefixes': dict(mask=spec.build('prefix', tfm.masks, Mask)),
  'packed rows': dict(layout='packed'),
  'caches': dict(layout='arbitrary'),
  'other scores': dict(score=_any_function),
  'biases': dict(bias=_any_function),
  'soft cap': dict(soft_cap=50.0),
  'sinks': dict(sinks=jax.ShapeDtypeStruct((PLAIN_MODEL['heads'],), jnp.float32)),
  'sigmoid': dict(normalizer='sigmoid'),
  'dropout': dict(dropout=0.1, dropout_key=jax.eval_shape(lambda: jax.random.key(0))),
}


def table(slot: str) -> Table:
  """One row per variant."""
  lines = Table(box=box.MARKDOWN, header_style='', pad_edge=False)
  columns = {'name': 1, 'arguments': 1, 'description': 1} | COLUMNS[slot]
  for column in columns:
    lines.add_column(column, no_wrap=True)
  for variant in variants(slot):
    lines.add_row(
      f'`{variant.name}`',
      f'`{variant.arguments}`' if variant.arguments else '',
      variant.summary,
      *(describe(variant) for describe in COLUMNS[slot].values()),
    )
  return lines


def _kernel_names(variant: Variant) -> str:
  reasons = kernels(variant)
  return ' '.join(name for name, refusal in reasons.items() if not refusal) if reasons else 'its own'


def _yes_or_no(value: bool) -> str:
  return YES if value else NO


def _masks(variant: Variant) -> str:
  return 'any' if variant.kind.supported_masks is None else ' '.join(variant.kind.supported_masks)


def _position_hooks(variant: Variant) -> str:
  return ' '.join(['embed', *sorted(variant.kind.position_hooks)])


def _branches(variant: Variant) -> str:
  return 'any' if variant.kind.required_branches is None else ' '.join(variant.kind.required_branches)


# slot → column → function of a variant.
COMMON = {
  'kernels': _kernel_names,
  'cache': lambda v: _yes_or_no(supports_cache(v)),
  'packing': lambda v: _yes_or_no(supports_packing(v)),
  'sharded over': own_mesh_axes,
}
COLUMNS = {
  'mixer': {'masks': _masks, 'position hooks': _position_hooks} | COMMON,
  'position': {'hooks': lambda v: ' '.join(sorted(v.kind.active_hooks()))} | COMMON,
  'mask': {
    'noncausal': lambda v: _yes_or_no(
      not is_causal(build_field('mask', spec.build, v.spec, tfm.masks, Mask), LENGTH)
    ),
    **{name: COMMON[name] for name in ('kernels', 'cache', 'packing')},
  },
  'score': COMMON,
  'kernel': {
    'runs on': lambda v: ' '.join(v.kind.platforms) or 'any platform',
    'supports beyond plain causal rows': features,
  },
  'feed_forward': {
    'noncausal': lambda v: _yes_or_no(v.kind.reads_other_tokens),
    'cache': lambda v: _yes_or_no(not v.kind.reads_other_tokens and supports_cache(v)),
    **{name: COMMON[name] for name in ('packing', 'sharded over')},
  },
  'norm': {'sharded over': own_mesh_axes},
  'residual': {
    'norm placements': lambda v: ' '.join(v.kind.placements),
    'branches': _branches,
    'noncausal': lambda v: _yes_or_no(v.kind.looks_ahead),
  },
  'optimizer': {},
}


def format_markdown() -> str:
  """All slots, as docs/reference/variants.md has them."""
  text = io.StringIO()
  console = Console(file=text, width=10_000, highlight=False, markup=False)
  console.print(HEAD)
  for slot in SLOTS:
    console.print(f'## {slot}\n')
    console.print(table(slot))
  return '\n'.join(line.rstrip() for line in text.getvalue().splitlines()) + '\n'


HEAD = """# Variants

Generated by `tfm variants`; a test compares these rows with its output. *kernels*: those that support a
model with the variant in training (bfloat16, rows of 256 tokens, defaults otherwise); *cache*: whether it
can decode with a cache; *packing*: whether it separates the documents of a row; *sharded over*: the mesh
axes that shard its own parameters under the default rules (empty: it has none). The conformance suite tests
each yes: cached equals uncached, packed equals alone, eight devices equal one.
"""
