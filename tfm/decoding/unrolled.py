"""A scanned model with its layers side by side."""

import functools

import jax

from tfm.models.decoder import Decoder
from tfm.models.stack import Stack
from tfm.shapes import PyTree


def unrolled(model: Decoder, params: PyTree) -> tuple[Decoder, PyTree]:
  """The same function without `nn.scan` in the decoder: `layers/…` [L, …] becomes `layers_0/…`, `layers_1/…`, ….

  A scan copies every layer's parameters and cache out of its stack and back for each token; side by
  side they are read where they lie.
  """
  stack = model.stack()
  turns = stack.layers // len(stack.pattern)
  if not stack.scan or not turns:
    return model, params
  rest = {name: part for name, part in params['stack'].items() if name != 'layers'}
  return unscanned(model), {**params, 'stack': {**unstacked(params['stack']['layers'], turns), **rest}}


@functools.cache
def unscanned(model: Decoder) -> Decoder:
  """The model with `scan` off; always the same object, so that what was compiled for it is found."""
  stack = model.stack()
  return model.clone(stack=functools.partial(Stack, stack.pattern, stack.layers, scan=False, remat='none'))


@functools.partial(jax.jit, static_argnums=1)
def unstacked(layers: PyTree, turns: int) -> dict[str, PyTree]:
  """{'layers_0': the first of each leaf, …}."""
  return {f'layers_{i}': jax.tree.map(lambda x: x[i], layers) for i in range(turns)}
