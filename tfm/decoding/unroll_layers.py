"""Converts a scanned model to one with separate layers."""

import functools

import jax

from tfm.models.decoder import Decoder
from tfm.models.encoder_decoder import EncoderDecoder
from tfm.models.stack import Stack
from tfm.parallel.compiler_options import WITHOUT_FUSION_EMITTERS
from tfm.shapes import PyTree


def unroll_layers(model: Decoder, params: PyTree) -> tuple[Decoder, PyTree]:
  """The same function without `nn.scan` in the decoder: `layers/…` [L, …] becomes `layers_0/…`, `layers_1/…`,
  ….

  A scan copies the parameters and cache of every layer out of the stack and back for each token; separate
  layers are read in place.
  """
  stack = model.stack()
  if not is_scanned(stack):
    return model, params
  return disable_scan(model), unroll_stack(stack, params)


def unroll_encoder(model: EncoderDecoder, params: PyTree) -> tuple[EncoderDecoder, PyTree]:
  """The same function without `nn.scan` in the encoder of an encoder-decoder."""
  encoder = model.encoder
  stack = encoder.keywords['stack']()
  if not is_scanned(stack):
    return model, params
  encoder = functools.partial(encoder.func, **encoder.keywords | dict(stack=without_scan(stack)))
  return model.clone(encoder=encoder), {**params, 'encoder': unroll_stack(stack, params['encoder'])}


def is_scanned(stack: Stack) -> bool:
  """Whether a stack has layers in an `nn.scan`."""
  return stack.scan and stack.layers >= len(stack.pattern)


@functools.cache
def disable_scan(model: Decoder) -> Decoder:
  """The model without `scan`; cached, so that compiled functions are reused."""
  return model.clone(stack=without_scan(model.stack()))


def without_scan(stack: Stack) -> functools.partial:
  """The factory of the same stack with separate layers."""
  fields = dict(
    scan=False,
    remat=None,
    streams=stack.streams,
    values=stack.values,
    shares_keys=stack.shares_keys,
    quantization=stack.quantization,
    cache_type=stack.cache_type,
  )
  return functools.partial(Stack, stack.pattern, stack.layers, **fields)


def unroll_stack(stack: Stack, params: PyTree) -> PyTree:
  """The parameters of what has a scanned stack, for separate layers."""
  layers, repeats = params['stack'], stack.layers // len(stack.pattern)
  rest = {name: part for name, part in layers.items() if name != 'layers'}
  return {**params, 'stack': {**unstack_layers(layers['layers'], repeats), **rest}}


@functools.partial(jax.jit, static_argnums=1, compiler_options=WITHOUT_FUSION_EMITTERS)
def unstack_layers(layers: PyTree, repeats: int) -> dict[str, PyTree]:
  """{'layers_0': the first of each leaf, …}."""
  return {f'layers_{i}': jax.tree.map(lambda x: x[i], layers) for i in range(repeats)}
