"""Forward pass of published models: one jitted function per kind of model, and the inputs of each kind."""

import functools

import jax
import jax.numpy as jnp

from tfm.mixers.protocol import Context
from tfm.spec import parse


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_decoder(model, params, output, ids, context, types, targets):
  """Logits after each token, or hidden states."""
  if output == 'features':
    return model.apply({'params': params}, ids, context, method='features')[0].astype(jnp.float32)
  return model.apply({'params': params}, ids, context)[0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_encoder(model, params, output, ids, context, types, targets):
  """Logits of masked tokens or of classes, or hidden states."""
  if output == 'features':
    return model.apply({'params': params}, ids, context, types, method='features').astype(jnp.float32)
  logits, _ = model.apply({'params': params}, ids, context, types)
  return logits['vocabulary' if output == 'vocabulary' else 'classification']


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_encoder_decoder(model, params, output, ids, context, types, targets):
  """Logits after each token of the target, or its hidden states."""
  target_context = Context.whole(targets)
  if output == 'features':
    memory = model.apply({'params': params}, ids, context, method='encode')
    return model.apply({'params': params}, targets, target_context, None, memory, method='features')[
      0
    ].astype(jnp.float32)
  return model.apply({'params': params}, targets, target_context, None, ids, context)[0]


@functools.partial(jax.jit, static_argnums=(0, 2))
def _run_vision(model, params, output, images, context, types, targets):
  """Logits of classes, or hidden states."""
  if output == 'features':
    return model.apply({'params': params}, images, context, method='features').astype(jnp.float32)
  return model.apply({'params': params}, images, context)[0]['classification']


FORWARD = dict(
  decoder=_run_decoder, encoder=_run_encoder, encoder_decoder=_run_encoder_decoder, vision=_run_vision
)
# The inputs of each kind of model; the first is required.
INPUTS = dict(
  decoder=('input_ids', 'attention_mask'),
  encoder=('input_ids', 'attention_mask', 'token_type_ids', 'global_attention_mask'),
  encoder_decoder=('input_ids', 'attention_mask', 'decoder_input_ids'),
  vision=('pixel_values',),
)
# Input → whether a config.model reads it.
INPUT_CONDITIONS = {
  'token_type_ids': lambda m: m.token_types > 0,
  'global_attention_mask': lambda m: parse(m.mixer).name == 'longformer',
}
