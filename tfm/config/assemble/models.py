"""Models: the trunk of a section, and what stands before and after it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tfm.config.assemble.blocks import build_block, build_norm
from tfm.config.assemble.images import OUTPUT, build_patches, count_patches, validate_images
from tfm.config.assemble.mixers import DTYPES, build_distinct_positions, build_initializer, build_mask
from tfm.config.schema import default_config, parts
from tfm.errors import require, suggest
from tfm.layers.cache_type import active_cache_type
from tfm.layers.classification_head import CLASS_TOKEN_COUNT, Pooled
from tfm.models.block import Block
from tfm.models.decoder import Decoder
from tfm.models.diffusion import Diffusion
from tfm.models.encoder import Encoder
from tfm.models.encoder_decoder import EncoderDecoder, SourceEncoder
from tfm.models.future_prediction import FuturePrediction
from tfm.models.image_text import ImageText
from tfm.models.reconstruction import Reconstruction
from tfm.models.stack import Stack
from tfm.models.trunk import Trunk
from tfm.models.vision import Vision


if TYPE_CHECKING:
  from tfm.config.assemble.experiment import Experiment


# Architecture → an objective that trains it, for error messages.
ARCHITECTURES = {
  'decoder': 'causal_lm',
  'encoder_decoder': 'seq2seq',
  'encoder': 'masked_lm',
  'image_text': 'contrastive',
  'diffusion': 'diffusion(10)',
}
# Fields of encoders only → the architectures that read them.
ENCODERS = {'patch': ('encoder', 'image_text', 'diffusion')} | dict.fromkeys(
  ('token_types', 'pooling', 'pooled_transform'), ('encoder',)
)


def build_model(experiment: 'Experiment', vocab: int, causal: bool, source_vocab: int) -> Trunk:
  """The model of a resolved config, for a tokenizer of `vocab` tokens plus the special tokens of the
  objective.

  Args:
    vocab: 0 where there is none, as for images.
    causal: whether a decoder's mask that lets a token attend to later ones is an error.
    source_vocab: tokens of the source, if it has its own vocabulary.

  Raises:
    ValueError: one sentence with the field, its value and what to use.
  """
  config = experiment.config
  m = config.model
  pair, encodes, denoises, with_images = (
    m.architecture == name for name in ('encoder_decoder', 'encoder', 'diffusion', 'image_text')
  )
  aim = experiment.objective
  require(
    pair or with_images or not m.encoder,
    f'config.model.architecture={m.architecture!r} ignores '
    "config.model.encoder; leave that out, or use 'encoder_decoder'",
  )
  require(
    m.architecture in aim.architectures,
    f'config.objective={config.objective!r} trains '
    f'{" and ".join(map(repr, aim.architectures))}, not config.model.architecture={m.architecture!r}; use an '
    f'objective such as {ARCHITECTURES[m.architecture]!r}',
  )
  if experiment.parametrization.has_unit_weights:
    validate_unit_weights(experiment)
  for field, readers in ENCODERS.items():
    default = default_config().model[field]
    require(
      m.architecture in readers or m[field] == default,
      f'config.model.{field}={m[field]!r} needs an encoder, and '
      f'config.model.architecture={m.architecture!r} ignores it; leave it at {default!r}',
    )
  for field in OUTPUT:
    default = default_config().model[field]
    require(
      not (encodes or denoises or with_images) or aim.masked_fraction or m[field] == default,
      f'config.model.{field}={m[field]!r} changes logits over the vocabulary, which '
      f'config.objective={config.objective!r} does not use; set it to {default!r}',
    )
  require(
    m.tie_embeddings or not with_images,
    f'config.model.tie_embeddings={m.tie_embeddings} is for logits over the vocabulary, which '
    f'config.objective={config.objective!r} does not use; set it to True',
  )
  turns = {where: part.pattern for where, part in parts(config).items() if 'pattern' in part}
  for where, pattern in turns.items():
    for name in pattern:
      require(
        name in m.blocks,
        f'config.{where}.pattern names {name!r}, which config.model.blocks does not '
        f'define; {suggest(name, m.blocks)}',
      )
  for name in m.blocks:
    users = [where for where, pattern in turns.items() if name in pattern]
    require(
      bool(users),
      f'config.model.blocks.{name} is not in config.model.pattern={m.pattern!r}; name it there or delete it',
    )
    require(
      len(users) == 1,
      f'config.model.blocks.{name} is in the patterns of {" and ".join(users)}, whose blocks '
      'inherit from different sections; define one for each',
    )

  if denoises or (encodes and (m.patch or experiment.source.image_shape)):
    validate_images(experiment)
    fields = build_trunk(experiment, 'model', causal=False, branches=2) | dict(
      build_patches(experiment), initializer=build_initializer(experiment, 'initializer')
    )
    if denoises:
      return Diffusion(**fields, classes=aim.condition_classes, outputs=aim.outputs)
    return Vision(**fields, class_tokens=m.class_tokens, heads=build_heads(experiment))

  require(
    with_images or m.class_tokens == 0,
    f'config.model.class_tokens={m.class_tokens} needs images, and the model reads text; leave it at 0',
  )
  require(
    CLASS_TOKEN_COUNT[m.pooling] < 2,
    f'config.model.pooling={m.pooling!r} needs the class tokens of images, and the model reads '
    "text; use 'first'",
  )

  def rows(vocab):
    return -(-vocab // m.vocab_multiple) * m.vocab_multiple

  vocab += len(aim.special_tokens)
  fields = build_trunk(
    experiment, 'model', causal and not (encodes or with_images), branches=3 if pair else 2
  ) | dict(
    vocab=vocab,
    rows=rows(vocab),
    embedding_width=m.embedding_width,
    embedding_scale=(m.width / experiment.parametrization.multiplier) ** 0.5 if m.scale_embeddings else 1.0,
    tie_embeddings=m.tie_embeddings,
    output_scale=1 / experiment.parametrization.multiplier if m.tie_embeddings else 1.0,
    output_transform=m.output_transform,
    output_bias=m.output_bias,
    output_soft_cap=m.output_soft_cap,
    scales_output=experiment.parametrization.has_unit_weights,
    embedding_initializer=build_initializer(experiment, 'embedding_initializer'),
    initializer=build_initializer(experiment, 'initializer'),
    taught_width=aim.taught_width,
  )
  further = {} if encodes or with_images else dict(further=build_further_predictions(experiment, causal))
  if encodes:
    return Encoder(
      **fields,
      token_types=build_token_types(experiment),
      heads=build_heads(experiment),
      hidden=aim.masked_fraction,
    )
  if with_images:
    return ImageText(**fields, encoder=build_image_encoder(experiment), image_width=m.encoder.width)
  if not pair:
    return Decoder(**fields, **further, reconstruction=build_reconstruction(experiment))
  encoder = functools.partial(
    SourceEncoder, **build_trunk(experiment, 'model.encoder', causal=False, branches=2)
  )
  return EncoderDecoder(
    **fields, **further, encoder=encoder, source_vocab=source_vocab, source_rows=rows(source_vocab)
  )


def validate_unit_weights(experiment: 'Experiment') -> None:
  """Raises ValueError for fields of a model that have no rule under `UnitWeights`."""
  m, aim = experiment.config.model, experiment.objective
  text, only = m.parametrization, dict(architecture='decoder', output_bias=False, output_transform='')
  for field, value in only.items():
    require(
      m[field] == value,
      f'config.model.{field}={m[field]!r} has no rule for config.model.parametrization={text!r}; set it to '
      f'{value!r}',
    )
  require(
    not (aim.further_tokens or aim.taught_width or aim.reconstructs),
    f'config.objective={experiment.config.objective!r} has projections without a rule for '
    f"config.model.parametrization={text!r}; use 'causal_lm'",
  )


def build_further_predictions(experiment: 'Experiment', causal: bool) -> tuple[Callable, ...]:
  """The factories of the modules that predict further tokens in training, with blocks as the last one."""
  config, number = experiment.config, experiment.objective.further_tokens
  if not number:
    return ()
  m = config.model
  at, b = (f'model.blocks.{m.pattern[-1]}', m.blocks[m.pattern[-1]]) if m.pattern else ('model', m)
  block = build_block(experiment, at, b, causal)
  require(
    block().residual.streams == 1 and b.own_keys and not m.value_residual,
    f'config.objective={config.objective!r} has blocks of its own, which get one residual stream alone; set '
    f"config.{at}.residual='sequential', own_keys=True, and config.model.value_residual=''",
  )
  initializer = build_initializer(experiment, 'initializer')
  make = functools.partial(
    FuturePrediction, block, build_norm(experiment, at, b), m.width, initializer, DTYPES[m.dtype]
  )
  return (make,) * number


def build_reconstruction(experiment: 'Experiment') -> Callable | None:
  """The factory of the module that reads a text from the hidden state of its last token, or None."""
  m = experiment.config.model
  if not experiment.objective.reconstructs:
    return None
  norm, initializer = build_norm(experiment, 'model', m), build_initializer(experiment, 'initializer')
  return functools.partial(Reconstruction, norm, m.width, initializer, DTYPES[m.dtype])


def build_image_encoder(experiment: 'Experiment') -> Callable:
  """The factory of the image encoder of an image-text model, described by the config's `model.encoder`.

  Raises:
    ValueError: for an encoder without a class token, and a parametrization that depends on the width.
  """
  config, patches = experiment.config.copy_and_resolve_references(), build_patches(experiment)
  m, encoder = config.model, config.model.encoder
  require(
    m.class_tokens >= 1,
    f'config.model.class_tokens={m.class_tokens} leaves out the token whose features embed an image; '
    'set it to 1',
  )
  require(
    not experiment.parametrization.depends_on_width,
    f'config.model.parametrization={m.parametrization!r} has no rule for the two widths of an image-text '
    "model; use 'standard'",
  )
  # Its blocks are those of an encoder of this width and depth, whose rows are the tokens of an image.
  config.data.length = count_patches(patches) + m.class_tokens
  m.update(
    architecture='encoder', layers=encoder.layers, width=encoder.width, embedding_norm=encoder.embedding_norm
  )
  images = dataclasses.replace(experiment, config=config)
  return functools.partial(
    Vision,
    **build_trunk(images, 'model.encoder', causal=False, branches=2),
    **patches,
    class_tokens=m.class_tokens,
    heads=(),
    initializer=build_initializer(images, 'initializer'),
    patch_bias=False,  # as in the code of Radford et al. 2021
  )


def build_token_types(experiment: 'Experiment') -> int:
  """The number of token types; at least two if the packing provides them."""
  config = experiment.config
  types, has_types = config.model.token_types, 'types' in experiment.packing.extra_fields
  require(types >= 0, f'config.model.token_types={types} must be 0 (none) or more')
  require(
    types >= 2 or not has_types,
    f'config.data.packing={config.data.packing!r} provides token types, and '
    f'config.model.token_types={types} ignores them; set it to 2',
  )
  return types


def build_heads(experiment: 'Experiment') -> tuple[tuple[str, Callable], ...]:
  """(name, factory) of each classification head of an encoder."""
  config = experiment.config
  m = config.model
  return tuple(
    (
      name,
      functools.partial(
        Pooled,
        pooling or m.pooling,
        '' if pooling == 'none' else m.pooled_transform,
        classes,
        m.width,
        m.dropout.residual,
        build_initializer(experiment, 'initializer'),
        DTYPES[m.dtype],
      ),
    )
    for name, classes, pooling in experiment.objective.classifier_heads
  )


def build_trunk(experiment: 'Experiment', where: str, causal: bool, branches: int) -> dict[str, Any]:
  """The fields of the trunk that a config section describes.

  Args:
    branches: residual branches of a block with a feed-forward layer; 3: with cross-attention.
  """
  config = experiment.config
  m, part = config.model, parts(config)[where]
  require(
    len(part.pattern) <= part.layers,
    f'config.{where}.pattern has {len(part.pattern)} blocks and config.{where}.'
    f'layers={part.layers}; the pattern must fit into the layers',
  )
  kinds = [(f'model.blocks.{name}', m.blocks[name]) for name in part.pattern] or [(where, part)]
  layers = [kinds[i % len(kinds)][1] for i in range(part.layers)]
  added = sum(branches - (b.feed_forward_width == 0) for b in layers)
  crossed = [('model.cross', m.cross)] if branches == 3 else []
  shares_keys = not all(b.own_keys for _, b in kinds)
  blocks = {
    at: build_block(experiment, at, b, causal, added if m.depth_scaled else None, bool(crossed), shares_keys)
    for at, b in kinds
  }
  made = {at: block() for at, block in blocks.items()}
  streams = require_equal(
    {at: block.residual.streams for at, block in made.items()}, 'residual', 'residual streams'
  )
  values = None
  if m.value_residual:
    shapes = {at: block.mixer().transformed_shapes['v'][0] for at, block in made.items()}
    values = require_equal(shapes, 'mixer', 'heads and channels of values')
  if shares_keys:
    validate_shared_keys(kinds, made)
  if causal and config.decoding.cache != 'full':
    validate_cache_type(config.decoding.cache, kinds, made)
  return dict(
    width=m.width,
    positions=build_distinct_positions(experiment, kinds + crossed),
    required_fields=frozenset().union(
      *(build_mask(experiment, at, b, causal).required_fields for at, b in kinds)
    ),
    stack=functools.partial(
      Stack,
      tuple(blocks[at] for at, _ in kinds),
      part.layers,
      m.scan,
      experiment.remat,
      config.pipeline.microbatches,
      config.pipeline.repeats,
      streams,
      values,
      shares_keys,
      experiment.quantization,
      config.decoding.cache,
    ),
    norm=build_norm(experiment, where, part),
    embedding_norm=m.embedding_norm,
    final_norm=layers[-1].norm_placement != 'post' and not experiment.parametrization.has_unit_weights,
    dropout=m.dropout.embedding,
    dtype=DTYPES[m.dtype],
  )


def require_equal(numbers: dict[str, Any], field: str, name: str) -> Any:
  """The number that all blocks of a stack have. Raises ValueError if they differ."""
  (first, number), *others = numbers.items()
  for at, other in others:
    require(
      other == number,
      f'config.{at}.{field} has {other} {name}, and config.{first}.{field} has {number}; give all blocks '
      'of a stack the same',
    )
  return number


def validate_cache_type(cache_type: str, kinds: list[tuple[str, Any]], made: dict[str, Block]) -> None:
  """Raises ValueError if no block of a pattern caches keys and values that can be rounded."""
  with active_cache_type(cache_type):
    caches = jax.eval_shape(
      lambda: {at: block.init_cache(1, 1) for at, block in made.items() if block.mixer().supports_decoding}
    )
  mixers = ' and '.join(sorted({repr(b.mixer) for _, b in kinds}))
  require(
    any(x.dtype == jnp.int8 for x in jax.tree.leaves(caches)),
    f'config.decoding.cache={cache_type!r} rounds keys and values, and config.model.mixer={mixers} caches '
    "none in this form; use 'full'",
  )


def validate_shared_keys(kinds: list[tuple[str, Any]], made: dict[str, Block]) -> None:
  """Raises ValueError if the blocks of a pattern cannot attend to keys and values of each other."""
  first, b = kinds[0]
  require(
    b.own_keys, f'config.{first}.own_keys=False needs an earlier block with keys; give it to later blocks'
  )
  for at, b in kinds:
    require(
      made[at].mixer().supports_cross_attention,
      f"config.{at}.mixer={b.mixer!r} cannot share keys and values with other blocks; use 'softmax'",
    )
  require_equal({at: b.position for at, b in kinds}, 'position', 'as position')
  shapes = {at: tuple(made[at].mixer().cached_shapes.values()) for at, _ in kinds}
  require_equal(shapes, 'mixer', 'as heads, channels and type of keys and values')
