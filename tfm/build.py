"""Config → objects: the one place where spec strings become modules, and where a bad run is refused."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import tfm.data.packing
import tfm.data.sources
import tfm.data.tokenizers
import tfm.kernels
import tfm.masks
import tfm.mixers
import tfm.objectives
import tfm.positions
import tfm.scores
from tfm import spec
from tfm.config import parts, require, schema
from tfm.data.packing.protocol import Packing
from tfm.data.sources.protocol import Source
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding.beam import PENALTIES
from tfm.kernels.protocol import Kernel
from tfm.layers.activation import ACTIVATIONS
from tfm.layers.feed_forward import FEED_FORWARDS
from tfm.layers.initializer import INITIALIZERS, Factory, shrunk
from tfm.layers.lora import DOWN, SCALE, UP, Lora
from tfm.layers.norm import norm as make_norm
from tfm.layers.pooled import LEADING, Pooled
from tfm.masks.protocol import Mask, is_causal
from tfm.mixers.protocol import Mixer
from tfm.models.block import PLACEMENTS, RESIDUALS, Block
from tfm.models.decoder import Decoder
from tfm.models.encoder import Encoder
from tfm.models.encoder_decoder import EncoderDecoder, SourceEncoder
from tfm.models.stack import REMAT, Stack
from tfm.models.trunk import Trunk
from tfm.models.vision import Vision
from tfm.objectives.protocol import Objective
from tfm.positions.protocol import Position
from tfm.scores.protocol import Score
from tfm.shapes import Array, Float
from tfm.training.interval import INTERVALS, Interval
from tfm.training.optimizer import OPTIMIZERS, Optimizer, by_depth
from tfm.training.optimizer import optimizer as make_optimizer
from tfm.training.schedule import SCHEDULES, schedule

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16, 'float16': jnp.float16}
# With an objective that trains each, for who has chosen one that does not.
ARCHITECTURES = {'decoder': 'causal_lm', 'encoder_decoder': 'seq2seq', 'encoder': 'masked_lm'}
# The parameters of what classifies: new to a model that did not.
HEADS = 'classification', 'next_sentence'
# What only one of them has.
ENCODERS = ('patch', 'token_types', 'pooling', 'pooled_transform')
# What stands between the trunk and the logits of a vocabulary.
OUTPUT = 'output_transform', 'output_bias', 'output_soft_cap'
# What only a model of tokens has.
TOKENS = ('tied', 'embedding_width', 'embedding_scaled', 'embedding_initializer', *OUTPUT, 'token_types', 'vocab_multiple')


def named(field: str, make: Callable, *args, **kwargs):
  """Calls `make`; a ValueError gets the config field put before it."""
  try:
    return make(*args, **kwargs)
  except ValueError as error:
    raise ValueError(f'config.{field}={error}') from error


def source(config: ConfigDict) -> Source:
  """The documents to learn from."""
  return named('data.source', spec.build, config.data.source, tfm.data.sources, Source)


def tokenizer(config: ConfigDict) -> Tokenizer | None:
  """The tokenizer, not yet trained; None for images."""
  return None if source(config).shape else named('data.tokenizer', spec.build, config.data.tokenizer, tfm.data.tokenizers, Tokenizer)


def packing(config: ConfigDict) -> Packing:
  """How documents become rows."""
  return named('data.packing', spec.build, config.data.packing, tfm.data.packing, Packing)


def objective(config: ConfigDict) -> Objective:
  """What is minimised."""
  return named('objective', spec.build, config.objective, tfm.objectives, Objective,
               chunk=config.training.loss_chunk, layout=packing(config).layout,
               recurrence=config.training.recurrence, shape=source(config).shape)


def optimizer(
    config: ConfigDict, peak: Float[Array, ''] | None = None) -> tuple[Optimizer, optax.Schedule]:
  """The optimizer, and its learning rate by steps done; `peak` is the config's learning rate unless given."""
  o = config.optimizer
  peak = o.learning_rate if peak is None else peak
  factor = named('optimizer.schedule', spec.choose, o.schedule, SCHEDULES)
  rate = schedule(factor, peak, o.warmup, config.training.steps, config.model.width)
  maker = named('optimizer.name', spec.choose, o.name, OPTIMIZERS)
  require(0 < o.layer_decay <= 1, f'config.optimizer.layer_decay={o.layer_decay} must lie above 0 and not above 1; 1.0 is none')
  for field in ('no_decay', 'frozen'):
    try:
      re.compile(o[field])
    except re.error as error:
      raise ValueError(f'config.optimizer.{field}={o[field]!r} is no regular expression: {error}') from error
  m, encoder = config.model, config.model.encoder
  factor = None if o.layer_decay == 1 else by_depth(
    o.layer_decay, m.layers, max(1, len(m.pattern)), *((encoder.layers, max(1, len(encoder.pattern))) if encoder else ()))
  return make_optimizer(maker, rate, o.clip, o.no_decay, frozen(config), factor), rate


def intervals(config: ConfigDict) -> tuple[Interval, Interval]:
  """When checkpoints are saved: those that last, and those near at hand."""
  return tuple(named(f'training.{field}', spec.choose, config.training[field], INTERVALS) for field in ('save_every', 'save_near'))


def frozen(config: ConfigDict) -> str:
  """A regular expression of the parameters that are not trained; '' for none."""
  if not config.lora.rank:
    return config.optimizer.frozen
  own = config.optimizer.frozen or rf'^(?!{"|".join(HEADS)})(?!.*/({DOWN}|{UP})$)'
  return f'({own})|/{SCALE}$'


def lora(config: ConfigDict) -> Lora | None:
  """The adapters that a config asks for.

  Raises:
    ValueError: for a rank below 0, or targets that are no regular expression.
  """
  rank, targets = config.lora.rank, config.lora.targets
  require(rank >= 0, f'config.lora.rank={rank} must be 0 (none) or more')
  try:
    re.compile(targets)
  except re.error as error:
    raise ValueError(f'config.lora.targets={targets!r} is no regular expression: {error}') from error
  return Lora(rank, config.lora.alpha, targets) if rank else None


def source_tokenizer(config: ConfigDict) -> Tokenizer | None:
  """The tokenizer of the source of a pair, not yet trained; None where the target's is the source's too."""
  text = config.data.source_tokenizer
  return None if text is None else named('data.source_tokenizer', spec.build, text, tfm.data.tokenizers, Tokenizer)


def penalty(config: ConfigDict) -> Callable:
  """The penalty of a hypothesis's length in beam search."""
  return named('decoding.penalty', spec.choose, config.decoding.penalty, PENALTIES)


def model(config: ConfigDict, vocab: int, causal: bool = True, source_vocab: int = 0) -> Trunk:
  """The model of a resolved config, for a tokenizer of `vocab` tokens, to which come those of the objective.

  Args:
    vocab: 0 where there is none, as of images.
    causal: whether a decoder's mask that lets a token see later ones is refused.
    source_vocab: tokens of the source, where it has a vocabulary of its own.

  Raises:
    ValueError: one sentence naming the field, its value and what would do.
  """
  m = config.model
  one_of('model.architecture', m.architecture, ARCHITECTURES)
  pair, encodes, aim = m.architecture == 'encoder_decoder', m.architecture == 'encoder', objective(config)
  require(pair or not m.encoder, f'config.model.architecture={m.architecture!r} has no encoder beside a decoder, so '
                                 "config.model.encoder would be ignored; 'encoder_decoder' has one")
  require(m.architecture in aim.architectures,
          f'config.objective={config.objective!r} does not train config.model.architecture={m.architecture!r}, but '
          f'{" and ".join(map(repr, aim.architectures))}; {ARCHITECTURES[m.architecture]!r} would do')
  for field in ENCODERS:
    default = schema().model[field]
    require(encodes or m[field] == default, f'config.model.{field}={m[field]!r} is of an encoder, and '
            f'config.model.architecture={m.architecture!r} would ignore it; leave it at {default!r}')
  for field in OUTPUT:
    default = schema().model[field]
    require(not encodes or aim.hidden or m[field] == default,
            f'config.model.{field}={m[field]!r} is of the logits of a vocabulary, and config.objective={config.objective!r} asks '
            f'an encoder for none; set it to {default!r}')
  for field in ('output_transform', 'pooled_transform'):
    if m[field]:
      one_of(f'model.{field}', m[field], ACTIVATIONS)
  for field in ('layers', 'width', 'embedding_width', 'vocab_multiple'):
    require(m[field] >= 1, f'config.model.{field}={m[field]} must be at least 1')
  require(m.output_soft_cap >= 0, f'config.model.output_soft_cap={m.output_soft_cap} must be 0 (none) or more')
  for field in m.dropout:
    require(0 <= m.dropout[field] < 1, f'config.model.dropout.{field}={m.dropout[field]} must lie in [0, 1)')
  one_of('model.dtype', m.dtype, DTYPES)
  one_of('model.remat', m.remat, REMAT)
  turns = {where: part.pattern for where, part in parts(config).items() if 'pattern' in part}
  for where, pattern in turns.items():
    for name in pattern:
      require(name in m.blocks, f'config.{where}.pattern names {name!r}, which config.model.blocks does not '
                                f'define; {spec.suggest(name, m.blocks)}')
  for name in m.blocks:
    users = [where for where, pattern in turns.items() if name in pattern]
    require(bool(users), f'config.model.blocks.{name} is not in config.model.pattern={m.pattern!r}; '
                         'name it there or delete it')
    require(len(users) == 1, f'config.model.blocks.{name} is in the patterns of {" and ".join(users)}, whose blocks '
                             'inherit from different sections; define one for each')

  one_of('model.pooling', m.pooling, LEADING)
  if m.patch or source(config).shape:
    return Vision(**trunk(config, 'model', causal=False, branches=2), **patches(config), heads=heads(config),
                  initializer=initializer(config, 'initializer'))

  require(m.class_tokens == 0, f'config.model.class_tokens={m.class_tokens} stand before the patches of images, and the model '
                               'reads texts; leave it at 0')
  require(LEADING[m.pooling] < 2, f'config.model.pooling={m.pooling!r} is of the learned tokens of images, and the model reads '
                                  "texts; 'first' would do")

  def rows(vocab):
    return -(-vocab // m.vocab_multiple) * m.vocab_multiple
  vocab += len(aim.special)
  fields = trunk(config, 'model', causal and not encodes, branches=3 if pair else 2) | dict(
    vocab=vocab, rows=rows(vocab), embedding_width=m.embedding_width,
    embedding_scale=m.width**0.5 if m.embedding_scaled else 1.0, tied=m.tied,
    output_transform=m.output_transform, output_bias=m.output_bias, output_soft_cap=m.output_soft_cap,
    embedding_initializer=initializer(config, 'embedding_initializer'), initializer=initializer(config, 'initializer'))
  if encodes:
    return Encoder(**fields, token_types=token_types(config), heads=heads(config), hidden=aim.hidden)
  if not pair:
    return Decoder(**fields)
  encoder = functools.partial(SourceEncoder, **trunk(config, 'model.encoder', causal=False, branches=2))
  return EncoderDecoder(**fields, encoder=encoder, source_vocab=source_vocab, source_rows=rows(source_vocab))


def patches(config: ConfigDict) -> dict[str, Any]:
  """What images are, and how they become tokens.

  Raises:
    ValueError: for a patch without images or images without one, one that does not divide them, fewer class tokens than
      the pooling reads, a data.length that is not as many, and what is said of tokens and would be ignored.
  """
  m, shape, length = config.model, source(config).shape, config.data.length
  require(bool(shape), f'config.model.patch={m.patch} cuts up images, and config.data.source={config.data.source!r} gives '
                       'texts; leave it at 0')
  H, W, _ = shape
  fit = [p for p in range(1, min(H, W) + 1) if H % p == W % p == 0]
  require(m.patch in fit, f'config.model.patch={m.patch} does not cut the {H} × {W} pixels of config.data.source='
                          f'{config.data.source!r} into patches; one of {", ".join(map(str, fit))} would do')
  count, classed = (H // m.patch) * (W // m.patch), m.class_tokens
  require(classed >= LEADING[m.pooling], f'config.model.class_tokens={classed} are fewer than the {LEADING[m.pooling]} that '
                                         f'config.model.pooling={m.pooling!r} reads; leave it out')
  told = {0: '', 1: ' and the class token'}.get(classed, f' and {classed} class tokens')
  require(length == count + classed,
          f'config.data.length={length} is not the {count} patches of {m.patch} × {m.patch} pixels of config.data.source='
          f"{config.data.source!r}{told}; {count + classed} would do")
  for field in TOKENS:
    default = m.width if field == 'embedding_width' else schema().model[field]
    require(m[field] == default, f'config.model.{field}={m[field]!r} is of a vocabulary, which images have not; leave it '
                                 f'at {default!r}')
  return dict(shape=shape, patch=m.patch, class_tokens=classed)


def token_types(config: ConfigDict) -> int:
  """How many there are; as many as the packing tells apart."""
  types, tells = config.model.token_types, 'types' in packing(config).gives
  require(types >= 0, f'config.model.token_types={types} must be 0 (none) or more')
  require(types >= 2 or not tells, f'config.data.packing={config.data.packing!r} tells first and second texts apart, and '
                                   f'config.model.token_types={types} would ignore it; 2 would do')
  return types


def heads(config: ConfigDict) -> tuple[tuple[str, Callable], ...]:
  """(name, factory) of each head of an encoder that classifies."""
  m = config.model
  return tuple((name, functools.partial(
    Pooled, pooling or m.pooling, '' if pooling == 'none' else m.pooled_transform, classes, m.width,
    m.dropout.residual, initializer(config, 'initializer'), DTYPES[m.dtype]))
    for name, classes, pooling in objective(config).heads)


def trunk(config: ConfigDict, where: str, causal: bool, branches: int) -> dict[str, Any]:
  """The fields of the trunk that a config section describes.

  Args:
    branches: residual branches of a block that has a feed-forward layer; of three, the second attends to a memory.
  """
  m, part = config.model, parts(config)[where]
  require(part.layers >= 1, f'config.{where}.layers={part.layers} must be at least 1')
  require(len(part.pattern) <= part.layers, f'config.{where}.pattern has {len(part.pattern)} blocks and config.{where}.'
                                            f'layers={part.layers}; the first turn would not be whole')
  kinds = [(f'model.blocks.{name}', m.blocks[name]) for name in part.pattern] or [(where, part)]
  outer = initializer(config, 'initializer')
  layers = [kinds[i % len(kinds)][1] for i in range(part.layers)]
  added = sum(branches - (b.feed_forward_width == 0) for b in layers)
  outer = shrunk(outer, added**-0.5) if m.depth_scaled else outer
  crossed = [('model.cross', m.cross)] if branches == 3 else []
  across = cross(config, outer) if crossed else None
  blocks = {at: block(config, at, b, causal, outer, across) for at, b in kinds}
  return dict(
    width=m.width,
    positions=distinct(config, kinds + crossed),
    reads=frozenset().union(*(mask(config, at, b, causal).reads for at, b in kinds)),
    stack=functools.partial(Stack, tuple(blocks[at] for at, _ in kinds), part.layers, m.scan, m.remat,
                            config.pipeline.microbatches, config.pipeline.repeats),
    norm=norm(config, where, part),
    embedding_norm=m.embedding_norm,
    final_norm=layers[-1].norm_placement != 'post',
    dropout=m.dropout.embedding,
    dtype=DTYPES[m.dtype],
  )


def block(
    config: ConfigDict, where: str, b: ConfigDict, causal: bool, outer: Factory | None = None,
    across: Callable | None = None) -> Callable:
  """The factory of one kind of block.

  Args:
    where: the config section that describes it.
    outer: the initializer of projections into the residual stream, if not the model's.
    across: the factory of the mixer that attends to a memory.
  """
  m = config.model
  one_of(f'{where}.norm_placement', b.norm_placement, PLACEMENTS)
  one_of(f'{where}.residual', b.residual, RESIDUALS)
  require(b.residual == 'sequential' or b.norm_placement == 'pre',
          f"config.{where}.residual={b.residual!r} is defined for norm_placement='pre', not {b.norm_placement!r}")
  require(b.residual == 'sequential' or across is None,
          f"config.{where}.residual={b.residual!r} is defined for a mixer and a feed-forward layer, and here is a third "
          "branch, cross-attention; 'sequential' would do")
  outer = outer or initializer(config, 'initializer')
  made = mixer(config, where, b, causal, outer)
  sizes = dict(width=m.width, hidden=b.feed_forward_width, bias=b.bias, initializer=initializer(config, 'initializer'),
               output_initializer=outer, dtype=DTYPES[m.dtype])
  layer = named(f'{where}.feed_forward', spec.choose, b.feed_forward, FEED_FORWARDS, **sizes)  # to be refused
  width = f'config.{where}.feed_forward_width={b.feed_forward_width}'
  require(layer is None or b.feed_forward_width >= 1, f'{width} must be at least 1')
  require(layer is not None or b.feed_forward_width == 0, f"{width} is of a layer that feed_forward='none' leaves out; "
                                                          'leave it out too')
  require(layer is not None or b.residual == 'sequential',
          f'config.{where}.residual={b.residual!r} adds a mixer and a feed-forward layer at once, and '
          f"feed_forward='none' leaves the mixer alone; 'sequential' would do")
  feed_forward = None if layer is None else spec.pick(b.feed_forward, FEED_FORWARDS, **sizes)
  return functools.partial(
    Block, made, feed_forward, norm(config, where, b), b.norm_placement, b.residual, m.dropout.residual, across)


def mixer(config: ConfigDict, where: str, b: ConfigDict, causal: bool, outer: Factory) -> Callable:
  """The factory of the mixer that a section describes."""
  m = config.model
  require(b.kv_heads >= 1 and b.heads % b.kv_heads == 0,
          f'config.{where}.kv_heads={b.kv_heads} must divide config.{where}.heads={b.heads}')
  require(b.head_width >= 1, f'config.{where}.head_width={b.head_width} must be at least 1')
  slots = dict(
    position=position(config, where, b),
    score=named(f'{where}.score', spec.factory, b.score, tfm.scores, Score, head_width=b.head_width),
    mask=mask(config, where, b, causal),
    kernel=named(f'{where}.kernel', spec.build, b.kernel, tfm.kernels, Kernel))
  made = named(
    f'{where}.mixer', spec.factory, b.mixer, tfm.mixers, Mixer, width=m.width, heads=b.heads,
    kv_heads=b.kv_heads, head_width=b.head_width, bias=b.bias, dropout=m.dropout.attention,
    initializer=initializer(config, 'initializer'), output_initializer=outer, dtype=DTYPES[m.dtype], **slots)
  check_parts(config, where, b, made.func, slots)
  require(not causal or not made().sees_later,
          f'config.{where}.mixer={b.mixer!r} lets tokens see later ones whatever the mask, which a decoder may not; an '
          'encoder may')
  return made


def cross(config: ConfigDict, outer: Factory) -> Callable:
  """The factory of the mixer through which a decoder attends to its encoder's output."""
  c = config.model.cross
  kind = named('model.cross.mixer', lambda text: spec.find(spec.parse(text).name, tfm.mixers, Mixer, text), c.mixer)
  require(kind.crosses, f"config.model.cross.mixer={c.mixer!r} reads no memory; 'softmax' would do")
  made = mixer(config, 'model.cross', c, causal=False, outer=outer)
  require('embed' not in made.keywords['position'].func.enters(),
          f'config.model.cross.position={c.position!r} enters at the embedding, where cross-attention has no say; '
          "'none' or one that enters elsewhere would do")
  return made


def check_parts(config: ConfigDict, where: str, b: ConfigDict, mixer: type[Mixer], parts: Mapping[str, Any]) -> None:
  """Refuses what is said of a block and the mixer has no place for."""
  fields = mixer.__dataclass_fields__
  for slot in ('score', 'kernel'):
    default = schema().model[slot]
    require(slot in fields or b[slot] == default,
            f'config.{where}.mixer={b.mixer!r} has no {slot}, so {slot}={b[slot]!r} would be ignored; '
            f'leave it at {default!r}')
  require(mixer.packs or packing(config).layout == 'whole',
          f'config.{where}.mixer={b.mixer!r} does not keep the documents of a row apart, and config.data.packing='
          f"{config.data.packing!r} puts several into one; 'concat' would do")
  require(mixer.groups or b.kv_heads == b.heads,
          f'config.{where}.mixer={b.mixer!r} has no groups of heads, so kv_heads={b.kv_heads} would be ignored; '
          f'leave it out, or set it to heads={b.heads}')
  extra = parts['position'].func.enters() - {'embed'} - mixer.hooks
  require(not extra, f'config.{where}.mixer={b.mixer!r} does not ask a position for its {" or ".join(sorted(extra))}, '
                     f"where position={b.position!r} enters; 'none' or one that enters at the embedding would do")
  require(mixer.lends or not parts['position']().borrows,
          f'config.{where}.mixer={b.mixer!r} does not lend its projections, which position={b.position!r} borrows; '
          "'softmax' does, or the position may have its own")
  known = None if mixer.masks is None else [spec.build(text, tfm.masks, Mask) for text in mixer.masks]
  require(known is None or parts['mask'] in known,
          f'config.{where}.mixer={b.mixer!r} cannot honour mask={b.mask!r}; '
          f'{" or ".join(map(repr, mixer.masks or ()))} would do')


def distinct(config: ConfigDict, kinds: Sequence[tuple[str, ConfigDict]]) -> tuple[Callable, ...]:
  """The factory of every positional scheme in use, each once, as what it embeds and shares is made once."""
  found = {}
  for where, b in kinds:
    made = position(config, where, b)
    first, sizes = found.setdefault(made().identity, (made, (b.heads, b.head_width)))
    require(sizes == (b.heads, b.head_width) or made.func.share is Position.share,
            f'config.{where}.position={b.position!r} is one table for all its blocks, and they differ in heads or '
            'head_width; give them the same')
  return tuple(made for made, _ in found.values())


def position(config: ConfigDict, where: str, b: ConfigDict) -> Callable:
  """The factory of a block's positional scheme."""
  return named(f'{where}.position', spec.factory, b.position, tfm.positions, Position,
               width=config.model.width, heads=b.heads, head_width=b.head_width, length=config.data.length)


def mask(config: ConfigDict, where: str, b: ConfigDict, causal: bool) -> Mask:
  """A block's mask; a decoder's must not look ahead, and what it reads must come from somewhere."""
  made = named(f'{where}.mask', spec.build, b.mask, tfm.masks, Mask)
  require(not causal or is_causal(made, config.data.length),
          f"config.{where}.mask={b.mask!r} lets a token see later ones, which a decoder may not; "
          f"'causal & ({b.mask})' would do")
  missing = made.reads - objective(config).gives
  require(not missing, f'config.{where}.mask={b.mask!r} wants to know the {" and ".join(sorted(missing))} of each '
                       f"document, which config.objective={config.objective!r} does not tell; 'prefix_lm' would do")
  return made


def norm(config: ConfigDict, where: str, b: ConfigDict) -> Callable:
  """The factory of a norm: its spec's arguments bound."""
  return named(f'{where}.norm', make_norm, b.norm, b.bias)


def initializer(config: ConfigDict, field: str) -> Callable:
  """An initializer factory by name."""
  return named(f'model.{field}', spec.choose, config.model[field], INITIALIZERS)


def one_of(field: str, value: str, known) -> None:
  """Refuses a name that is not among the known ones."""
  require(value in known, f'config.{field}={value!r} is not there; {spec.suggest(str(value), known)}')
