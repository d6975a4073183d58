"""Replaces every None of a config by the value that it stands for."""

from ml_collections import ConfigDict

from tfm import spec
from tfm.config.schema import encoder_sections, parts, validate_fields
from tfm.errors import require


def resolve_config(config: ConfigDict) -> ConfigDict:
  """A copy in which every None is replaced by the value that it stands for.

  Raises:
    ValueError: for a value out of its range, a name that does not exist, or a value from which another cannot
      be derived.
  """
  config = config.copy_and_resolve_references()
  validate_fields(config)
  # Imported after that, because they import JAX.
  from tfm.feed_forwards.protocol import default_hidden
  from tfm.layers.classification_head import CLASS_TOKEN_COUNT

  model = config.model
  if model.mask is None:
    model.mask = 'full' if model.architecture in ('encoder', 'diffusion') else 'causal'
  if model.embedding_width is None:
    model.embedding_width = model.width
  if model.class_tokens is None:
    pools = model.patch and model.architecture != 'diffusion'
    model.class_tokens = CLASS_TOKEN_COUNT.get(model.pooling, 0) if pools else 0
  for part in (model.encoder, model.cross):
    inherit(part, model)
  for name, block in model.blocks.items():
    inherit(block, model.encoder if name in model.encoder.get('pattern', ()) else model)
  for where, block in parts(config).items():
    # Of an image-text model the encoder has a width of its own.
    section = 'model.encoder' if where in encoder_sections(model) and 'width' in model.encoder else 'model'
    width = model.encoder.width if section == 'model.encoder' else model.width
    if block.head_width is None:
      require(
        width % block.heads == 0,
        f'config.{where}.heads={block.heads} does not divide config.{section}.width={width}; use a '
        f'divisor, or set config.{where}.head_width',
      )
      block.head_width = width // block.heads
    if block.kv_heads is None:
      block.kv_heads = block.heads
    if 'feed_forward' in block and block.feed_forward_width is None:
      try:
        block.feed_forward_width = default_hidden(block.feed_forward, width)
      except ValueError as error:
        raise ValueError(f'config.{where}.feed_forward={error}') from error
  return config


def inherit(part: ConfigDict, whole: ConfigDict) -> None:
  """Replaces None in a section by the value of the section that it belongs to."""
  # A section with its own heads derives kv_heads and head_width from them.
  own = ('kv_heads', 'head_width') if part and part.heads not in (None, whole.heads) else ()
  if part.get('feed_forward') and not is_branch(part.feed_forward):
    own += ('feed_forward_width',)
  for field, value in part.items():
    if value is None and field not in own:
      part[field] = whole[field]


def is_branch(feed_forward: str) -> bool:
  """Whether a spec names a feed-forward layer; True for an invalid spec, which is reported later with its
  field.
  """
  import tfm.feed_forwards
  from tfm.feed_forwards.protocol import FeedForward

  try:
    return spec.find_variant(spec.parse(feed_forward).name, tfm.feed_forwards, FeedForward).is_branch
  except spec.SpecError:
    return True
