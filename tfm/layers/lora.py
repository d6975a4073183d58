"""Low-rank adapters: a small correction beside each projection that is asked for, which alone is trained."""

import dataclasses
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import normal, zeros
from tfm.parallel.sharding import Parameter, with_logical_axes
from tfm.shapes import Array, PyTree


DOWN, UP, SCALE = 'lora_down', 'lora_up', 'lora_scale'
# Axes of kernels that are no plain projection: experts, convolutions, recurrent cells.
OTHERS = {'expert', 'taps', 'gates', 'state'}


@dataclasses.dataclass(frozen=True)
class Lora:
  """x W becomes x W + alpha/rank · (x A) B, with A [in, rank] drawn from N(0, 1/in) and B [rank, out] zero
  (Hu et al. 2021, §4.1).

  Attributes:
    rank: of the correction; alpha: its scale, times the rank.
    targets: searched in the path of each projection.
  """

  rank: int
  alpha: float
  targets: str

  def added(self, params: PyTree, key: Array) -> PyTree:
    """Boxed parameters with A, B and the scale beside each kernel that is a target.

    Raises:
      ValueError: if no projection is a target, or one is that holds several.
    """
    count = 0

    def walk(tree, path):
      nonlocal count
      made = {
        name: walk(leaf, f'{path}{name}/') if isinstance(leaf, dict) else leaf for name, leaf in tree.items()
      }
      kernel = tree.get('kernel')
      if not isinstance(kernel, Parameter) or not re.search(self.targets, path):
        return made
      if OTHERS & set(kernel.names):
        raise ValueError(
          f'targets={self.targets!r} finds {path}kernel, which is no single projection; leave it out'
        )
      count += 1
      return made | self._beside(kernel, jax.random.fold_in(key, count))

    made = walk(params, '')
    if not count:
      raise ValueError(
        f"targets={self.targets!r} finds no projection; 'mixer/(q|v)/' finds those of queries and values"
      )
    return made

  def _beside(self, kernel: Parameter, key: Array) -> dict[str, Parameter]:
    stacked = int(kernel.names[0] == 'layers')
    names, shape = kernel.names[stacked:], kernel.value.shape[stacked:]
    layers, first = kernel.value.shape[:stacked], kernel.names[:stacked]
    inputs = contracted(names)
    fan = math.prod(shape[:inputs])

    def made(initializer, own, axes):
      return with_logical_axes(initializer((0,), (1,)), (*first, *axes))(key, (*layers, *own), jnp.float32)

    return {
      DOWN: made(normal(fan**-0.5), (*shape[:inputs], self.rank), (*names[:inputs], 'rank')),
      UP: made(lambda *_: zeros, (self.rank, *shape[inputs:]), ('rank', *names[inputs:])),
      SCALE: made(lambda *_: zeros, (), ()).replace_boxed(
        jnp.full(layers, self.alpha / self.rank, jnp.float32)
      ),
    }


def contracted(names: tuple[str, ...]) -> int:
  """How many axes of a projection's kernel meet its input: all but the width where it leads there, else the
  first.
  """
  return len(names) - 1 if names[-1] == 'embed' else 1


def correction(module: nn.Module, x: Array, inputs: int) -> Array | None:
  """alpha/rank · (x A) B of a projection that has adapters, in the type of x; None of one that has not.

  Args:
    inputs: axes of x that are contracted.
  """
  if not module.has_variable('params', DOWN):
    return None
  down, up, scale = (module.get_variable('params', name) for name in (DOWN, UP, SCALE))
  rank, rows = down.shape[-1], math.prod(down.shape[:-1])
  y = x.reshape(*x.shape[: x.ndim - inputs], rows) @ down.reshape(rows, rank).astype(x.dtype)
  y = y @ (scale * up).reshape(rank, -1).astype(x.dtype)
  return y.reshape(*y.shape[:-1], *up.shape[1:])


def merged(params: PyTree) -> PyTree:
  """Parameters without adapters, whose corrections are in the kernels: W + alpha/rank · A B."""
  if not isinstance(params, dict):
    return params
  own = {name: merged(leaf) for name, leaf in params.items() if name not in (DOWN, UP, SCALE)}
  if DOWN in params:
    down, up, scale = (params[name] for name in (DOWN, UP, SCALE))
    stacked = scale.ndim

    def product(down, up, scale):
      return scale * jnp.tensordot(down, up, 1)

    own['kernel'] = own['kernel'] + (jax.vmap(product) if stacked else product)(down, up, scale).astype(
      own['kernel'].dtype
    )
  return own
