"""Converts a scanned model to one with separate layers."""

import functools

import jax

from tfm.models.decoder import Decoder
from tfm.models.stack import Stack
from tfm.shapes import PyTree


def unroll_layers(model: Decoder, params: PyTree) -> tuple[Decoder, PyTree]:
  """The same function without `nn.scan` in the decoder: `layers/…` [L, …] becomes `layers_0/…`, `layers_1/…`,
  ….

  A scan copies the parameters and cache of every layer out of the stack and back for each token; separate
  layers are read in place.
  """
  stack = model.stack()
  repeats = stack.layers // len(stack.pattern)
  if not stack.scan or not repeats:
    return model, params
  rest = {name: part for name, part in params['stack'].items() if name != 'layers'}
  return disable_scan(model), {
    **params,
    'stack': {**unstack_layers(params['stack']['layers'], repeats), **rest},
  }


@functools.cache
def disable_scan(model: Decoder) -> Decoder:
  """The model without `scan`; cached, so that compiled functions are reused."""
  stack = model.stack()
  return model.clone(stack=functools.partial(Stack, stack.pattern, stack.layers, scan=False, remat=None))


@functools.partial(jax.jit, static_argnums=1)
def unstack_layers(layers: PyTree, repeats: int) -> dict[str, PyTree]:
  """{'layers_0': the first of each leaf, …}."""
  return {f'layers_{i}': jax.tree.map(lambda x: x[i], layers) for i in range(repeats)}
