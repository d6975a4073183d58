"""Forward pass of published models: one jitted function per kind of model, and the inputs of each kind."""

import functools

import jax
import jax.numpy as jnp
from flax import struct

from tfm.mixers.protocol import Context
from tfm.shapes import Array
from tfm.spec import parse


@struct.dataclass
class Inputs:
  """What a forward pass reads.

  Attributes:
    main: token ids [B, T], or images [B, H, W, Q].
    context: of the tokens or patches.
    types: token types [B, T], for encoders that have them.
    targets: the target's token ids [B, T], for encoder-decoders.
    images: [B, H, W, Q], for image-text models.
  """

  main: Array
  context: Context
  types: Array | None = None
  targets: Array | None = None
  images: Array | None = None


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_decoder(model, params, output, inputs):
  """Logits after each token, or hidden states."""
  if output == 'features':
    hidden, _ = model.apply({'params': params}, inputs.main, inputs.context, method='features')
    return hidden.astype(jnp.float32)
  return model.apply({'params': params}, inputs.main, inputs.context)[0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_encoder(model, params, output, inputs):
  """Logits of masked tokens or of classes, or hidden states."""
  arguments = inputs.main, inputs.context, inputs.types
  if output == 'features':
    return model.apply({'params': params}, *arguments, method='features').astype(jnp.float32)
  logits, _ = model.apply({'params': params}, *arguments)
  return logits['vocabulary' if output == 'vocabulary' else 'classification']


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_encoder_decoder(model, params, output, inputs):
  """Logits after each token of the target, or its hidden states."""
  targets, source = (inputs.targets, Context.contiguous(inputs.targets)), (inputs.main, inputs.context)
  if output == 'features':
    memory = model.apply({'params': params}, *source, method='encode')
    hidden, _ = model.apply({'params': params}, *targets, None, memory, method='features')
    return hidden.astype(jnp.float32)
  return model.apply({'params': params}, *targets, None, *source)[0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_vision(model, params, output, inputs):
  """Logits of classes, or hidden states."""
  if output == 'features':
    hidden = model.apply({'params': params}, inputs.main, inputs.context, method='features')
    return hidden.astype(jnp.float32)
  return model.apply({'params': params}, inputs.main, inputs.context)[0]['classification']


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_image_text(model, params, output, inputs):
  """Logits of every image with every text."""
  return model.apply({'params': params}, inputs.images, inputs.main, inputs.context)[0]


FORWARD = dict(
  decoder=_run_decoder,
  encoder=_run_encoder,
  encoder_decoder=_run_encoder_decoder,
  vision=_run_vision,
  image_text=_run_image_text,
)
# The names of the inputs of each kind of model; the first is required.
INPUT_NAMES = dict(
  decoder=('input_ids', 'attention_mask'),
  encoder=('input_ids', 'attention_mask', 'token_type_ids', 'global_attention_mask'),
  encoder_decoder=('input_ids', 'attention_mask', 'decoder_input_ids'),
  vision=('pixel_values',),
  image_text=('input_ids', 'attention_mask', 'pixel_values'),
)
# Input → whether a config.model reads it.
INPUT_CONDITIONS = {
  'token_type_ids': lambda m: m.token_types > 0,
  'global_attention_mask': lambda m: parse(m.mixer).name == 'longformer',
}
