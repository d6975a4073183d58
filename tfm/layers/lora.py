"""Low-rank adapters (LoRA): a trainable low-rank update of each selected projection."""

import dataclasses
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.float32_gradients import einsum
from tfm.layers.initializer import normal, zeros
from tfm.parallel.sharding import Parameter, with_logical_axes
from tfm.shapes import Array, PyTree


DOWN, UP, SCALE = 'lora_down', 'lora_up', 'lora_scale'
# Axes of kernels that are no plain projection: experts, convolutions, recurrent cells.
UNSUPPORTED_AXES = {'expert', 'taps', 'gates', 'state'}


@dataclasses.dataclass(frozen=True)
class Lora:
  """x W becomes x W + alpha/rank · (x A) B, with A [in, rank] drawn from N(0, 1/in) and B [rank, out] zero
  (Hu et al. 2021, §4.1).

  Attributes:
    rank: of the update; alpha: its scale, times the rank.
    targets: searched in the path of each projection.
  """

  rank: int
  alpha: float
  targets: str

  def add_adapters(self, params: PyTree, key: Array) -> PyTree:
    """Boxed parameters with A, B and the scale beside each kernel that is a target.

    Raises:
      ValueError: if no projection is a target, or a target is no single projection.
    """
    count = 0

    def walk(tree, path):
      nonlocal count
      tree_with_adapters = {
        name: walk(leaf, f'{path}{name}/') if isinstance(leaf, dict) else leaf for name, leaf in tree.items()
      }
      kernel = tree.get('kernel')
      if not isinstance(kernel, Parameter) or not re.search(self.targets, path):
        return tree_with_adapters
      if UNSUPPORTED_AXES & set(kernel.names):
        raise ValueError(
          f'targets={self.targets!r} selects {path}kernel, which is no single projection; exclude it'
        )
      count += 1
      return tree_with_adapters | self._make_adapter(kernel, jax.random.fold_in(key, count))

    tree_with_adapters = walk(params, '')
    if not count:
      raise ValueError(
        f"targets={self.targets!r} selects no projection; use 'mixer/(q|v)/' for those of queries and values"
      )
    return tree_with_adapters

  def _make_adapter(self, kernel: Parameter, key: Array) -> dict[str, Parameter]:
    stacked = int(kernel.names[0] == 'layers')
    names, shape = kernel.names[stacked:], kernel.value.shape[stacked:]
    layers, first = kernel.value.shape[:stacked], kernel.names[:stacked]
    inputs = count_contracted_axes(names)
    fan = math.prod(shape[:inputs])

    def make(initializer, own, axes):
      return with_logical_axes(initializer((0,), (1,)), (*first, *axes))(key, (*layers, *own), jnp.float32)

    return {
      DOWN: make(normal(fan**-0.5), (*shape[:inputs], self.rank), (*names[:inputs], 'rank')),
      UP: make(lambda *_: zeros, (self.rank, *shape[inputs:]), ('rank', *names[inputs:])),
      SCALE: make(lambda *_: zeros, (), ()).replace_boxed(
        jnp.full(layers, self.alpha / self.rank, jnp.float32)
      ),
    }


def count_contracted_axes(names: tuple[str, ...]) -> int:
  """The number of contracted axes of a projection's kernel: all but the last if it projects to the model
  width, else the first.
  """
  return len(names) - 1 if names[-1] == 'embed' else 1


def compute_update(module: nn.Module, x: Array, inputs: int) -> Array | None:
  """alpha/rank · (x A) B of a projection with adapters, in the type of x; None without adapters.

  Args:
    inputs: axes of x that are contracted.
  """
  if not module.has_variable('params', DOWN):
    return None
  down, up, scale = (module.get_variable('params', name) for name in (DOWN, UP, SCALE))
  rank, rows = down.shape[-1], math.prod(down.shape[:-1])
  y = x.reshape(*x.shape[: x.ndim - inputs], rows)
  y = einsum('...y,yz->...z', y, down.reshape(rows, rank))
  y = einsum('...y,yz->...z', y, (scale * up).reshape(rank, -1))
  return y.reshape(*y.shape[:-1], *up.shape[1:])


def merge_adapters(params: PyTree) -> PyTree:
  """The parameters with the adapters merged into the kernels: W + alpha/rank · A B."""
  if not isinstance(params, dict):
    return params
  own = {name: merge_adapters(leaf) for name, leaf in params.items() if name not in (DOWN, UP, SCALE)}
  if DOWN in params:
    down, up, scale = (params[name] for name in (DOWN, UP, SCALE))
    stacked = scale.ndim

    def product(down, up, scale):
      return scale * jnp.tensordot(down, up, 1)

    own['kernel'] = own['kernel'] + (jax.vmap(product) if stacked else product)(down, up, scale).astype(
      own['kernel'].dtype
    )
  return own
