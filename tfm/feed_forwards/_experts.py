"""What mixtures of experts share: a router, the parameters of all experts, experts applied to slots."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import tfm.feed_forwards
from tfm import spec
from tfm.feed_forwards._mlp import MLP
from tfm.feed_forwards.protocol import FeedForward
from tfm.layers.checkpoint_names import name_output
from tfm.layers.float32_gradients import einsum
from tfm.layers.initializer import Factory, Initializer, zeros
from tfm.layers.linear import Linear
from tfm.parallel.sharding import (
  mesh_axes_of,
  mesh_axes_per_dimension,
  shard,
  shard_over_mesh_axes,
  with_logical_axes,
)
from tfm.parallel.ulysses import EXCHANGED
from tfm.shapes import Array, Bool, Float


class Experts(FeedForward):
  """E MLPs, of which a subclass decides which token goes to which. It declares these fields:

  Attributes:
    experts: E; activation: of an expert, the name of an MLP of this folder.
    shared: experts that every token goes to, together one MLP of `shared` · F (Dai et al. 2024,
      DeepSeekMoE, §3.2).
  """

  @property
  def expert(self) -> type[MLP]:
    """The class of one expert."""
    try:
      return spec.find_variant(self.activation, tfm.feed_forwards, MLP)
    except spec.SpecError as error:
      raise ValueError(f'activation={error}') from error

  @property
  def is_gated(self):
    return self.expert.is_gated

  def route(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T E']:
    """The router's logits, in float32; called within a compact method."""
    with jax.default_matmul_precision('float32'):
      logits = Linear(
        (self.width, self.experts),
        ('embed', 'expert'),
        self.initializer,
        bias=False,
        dtype=jnp.float32,
        name='router',
      )(x)
    return shard(logits, 'batch', 'length', None)

  def add_shared(
    self, y: Float[Array, 'B T D'], x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']
  ) -> Float[Array, 'B T D']:
    """y and what the shared experts make of x."""
    if not self.shared:
      return y
    make = functools.partial(self.expert, self.width, self.shared * self.hidden, self.bias)
    return y + make(self.initializer, self.output_initializer, self.dtype, name='shared')(x, valid)

  def apply_to_slots(self, x: Float[Array, 'B E R D']) -> Float[Array, 'B E R D']:
    """Applies to the slots of each expert that expert."""
    # Rows are exchanged by all-to-all over mesh axes that shard both experts and the batch.
    expert_axes, _, hidden = mesh_axes_per_dimension('expert', 'embed', 'mlp')
    exchange_axes = tuple(axis for axis in mesh_axes_of('batch') if axis not in expert_axes)

    def shard_slots(x, axis):
      mlp_axes = tuple(i for i in hidden if i not in exchange_axes) if axis == 'mlp' else ()
      return shard_over_mesh_axes(x, exchange_axes, expert_axes, (), mlp_axes)

    def project(name, x):
      projection = self.projection(name)
      p = projection()
      y = einsum('gnri,nio->gnro', x, p['kernel'])
      if self.bias:
        y = (y + p['bias'][None, :, None]).astype(self.dtype)
      return shard_slots(y, projection.axes[1])

    # With a name, so that the backward pass does not exchange it once more.
    x = checkpoint_name(shard_slots(x, 'embed'), EXCHANGED)
    return project('down', self.activate(lambda name: project(name, x)))

  def activate(self, project: Callable[[str], Array]) -> Array:
    """The hidden layers, from named projections; see `MLP.activate`."""
    return self.expert.activate(lambda name: name_output(project(name), self, name))

  def projection(self, name: str) -> 'Projections':
    """The parameters of one projection of all experts."""
    shape, axes = (self.width, self.hidden), ('embed', 'mlp')
    if name == 'down':
      return Projections(self.experts, shape[::-1], axes[::-1], self.output_initializer, self.bias, name=name)
    return Projections(self.experts, shape, axes, self.initializer, self.bias, name=name)

  def sow_scalar(self, collection: str, name: str, value: Float[Array, '']) -> None:
    """Sows a value, except at initialization, which returns parameters alone."""
    if not self.is_initializing():
      self.sow(collection, name, value)


class Projections(nn.Module):
  """W_i [I O] and, with `bias`, b_i [O] of each expert i; `axes` are the logical axes of W."""

  experts: int
  shape: tuple[int, int]
  axes: tuple[str, str]
  initializer: Factory
  bias: bool

  @nn.compact
  def __call__(self) -> dict[str, Array]:
    initializer = with_logical_axes(
      _init_each(self.initializer((0,), (1,)), self.experts), ('expert', *self.axes)
    )
    p = dict(kernel=self.param('kernel', initializer, (self.experts, *self.shape), jnp.float32))
    if self.bias:
      zero = with_logical_axes(zeros, ('expert', self.axes[1]))
      p['bias'] = self.param('bias', zero, (self.experts, self.shape[1]), jnp.float32)
    return p


def _init_each(initializer: Initializer, experts: int) -> Initializer:
  """Initializes every expert separately: the number of experts is no fan."""

  def make(key, shape, dtype):
    return jax.vmap(lambda key: initializer(key, shape[1:], dtype))(jax.random.split(key, experts))

  def adjust(values, names, inputs):
    return jax.vmap(lambda x: initializer.adjust(x, names[1:], tuple(axis - 1 for axis in inputs)))(values)

  return dataclasses.replace(
    initializer,
    make=make,
    inputs=tuple(axis + 1 for axis in initializer.inputs),
    outputs=tuple(axis + 1 for axis in initializer.outputs),
    adjust=initializer.adjust and adjust,
  )
