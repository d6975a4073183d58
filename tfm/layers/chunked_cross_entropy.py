"""A chunked loss: the logits exist for one chunk of each row at a time, and on a mesh for a device's own
shard.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tfm.layers.cross_entropy import Sums
from tfm.layers.float32_gradients import reduction_dtype
from tfm.parallel.sharding import dividing_axes, mesh_axes_of, shard_count
from tfm.shapes import Array, Float, PyTree


def chunk_count(rows: int, length: int, chunk: int) -> int:
  """How many equal pieces of the length keep rows × piece within `chunk` tokens; 0 is no bound."""
  least = -(-rows * length // chunk) if chunk else 1
  return next(n for n in range(1, length + 1) if length % n == 0 and (n >= least or n == length))


def split_into_chunks(x: Array, pieces: int) -> Array:
  """[B, T, …] → [pieces, B, T / pieces, …]."""
  return jnp.moveaxis(x.reshape(x.shape[0], pieces, x.shape[1] // pieces, *x.shape[2:]), 1, 0)


def merge_chunks(x: Array) -> Array:
  """The inverse of `split_into_chunks`."""
  x = jnp.moveaxis(x, 0, 1)
  return x.reshape(x.shape[0], -1, *x.shape[3:])


@dataclasses.dataclass(frozen=True, eq=False)
class LossSharding:
  """How rows [B, T] and a head are sharded over the devices of the current mesh.

  Attributes:
    batch, length, vocab: the mesh axes that shard rows, tokens of a row, and the vocabulary.
    specs: of each parameter of the head: its vocabulary axis stays sharded, the others are gathered.
    gradient_axes: of each parameter and each of its axes: the mesh axes that shard both the rows and the
      parameter.
  """

  batch: tuple[str, ...] = ()
  length: tuple[str, ...] = ()
  vocab: tuple[str, ...] = ()
  specs: PyTree = None
  gradient_axes: PyTree = None

  @classmethod
  def of(cls, rows: int, length: int, vocab: int, head: PyTree, names: PyTree | None) -> 'LossSharding':
    """The sharding by the current rules, as far as the sizes divide: initialization has one row.

    Args:
      vocab: columns of the logits; names: the logical axes of each parameter of the head; None: it is
        replicated.
    """
    batch = dividing_axes('batch', rows)
    tokens = dividing_axes('length', length, batch)
    columns = dividing_axes('vocab', vocab, batch + tokens) if names is not None else ()

    def spec(_, names):
      return PartitionSpec(*(columns or None if name == 'vocab' else None for name in names))

    def gradient_axes(x, names):
      axes_of_dims = ()
      for name, size in zip(names, x.shape):
        axes = tuple(
          axis for axis in mesh_axes_of(name) if axis in batch + tokens and axis not in sum(axes_of_dims, ())
        )
        axes_of_dims += (axes if name != 'vocab' and size % shard_count(axes) == 0 else (),)
      return axes_of_dims

    names = jax.tree.map(lambda _: (), head) if names is None else names
    return cls(
      batch, tokens, columns, jax.tree.map(spec, head, names), jax.tree.map(gradient_axes, head, names)
    )

  @property
  def rows(self) -> tuple[str, ...]:
    return self.batch + self.length

  @property
  def is_sharded(self) -> bool:
    return bool(self.rows + self.vocab)

  def run(self, f: Callable, head: PyTree, rows: tuple[Array, ...], outside: Any) -> Any:
    """Runs `f(head, *rows)` on every device, with its shards."""
    inside = self.specs, *(PartitionSpec(self.batch or None, self.length or None) for _ in rows)
    # Sharding constraints inside describe global arrays, and these are shards.
    with nn.logical_axis_rules(()):
      return jax.shard_map(f, in_specs=inside, out_specs=outside, check_vma=False)(head, *rows)

  def sum_over_devices(self, total: Float[Array, ''], sums: Sums) -> tuple[Float[Array, ''], Sums, Sums]:
    """The sums of all devices: the objective, metrics that are one number, and those of each row."""
    numbers = {name: psum_over(x, self.rows) for name, x in sums.items() if not x.ndim}
    return (
      psum_over(total, self.rows),
      numbers,
      {name: psum_over(x, self.length) for name, x in sums.items() if x.ndim},
    )

  @property
  def total_specs(self) -> tuple[PartitionSpec, ...]:
    """The specs of the result of `sum_over_devices`."""
    return PartitionSpec(), PartitionSpec(), PartitionSpec(self.batch or None)

  def reduce_gradient(
    self, x: Array, spec: PartitionSpec, gradient_axes: tuple[tuple[str, ...], ...]
  ) -> Array:
    """The gradient of a parameter summed over devices, in `reduction_dtype`; each stores its own shard."""
    dtype, x = x.dtype, x.astype(reduction_dtype.value or x.dtype)
    for i, axes in enumerate(gradient_axes):
      if axes:
        x = jax.lax.psum_scatter(x, axes, scatter_dimension=i, tiled=True)
    # For a parameter without a vocabulary axis, each device has the gradient through its own logits.
    over = self.rows + (() if any(spec) else self.vocab)
    return psum_over(x, tuple(axis for axis in over if axis not in sum(gradient_axes, ()))).astype(dtype)

  @property
  def gradient_specs(self) -> PyTree:
    """The specs of the result of `reduce_gradient`."""
    return jax.tree.map(
      lambda spec, gradient_axes: PartitionSpec(*(axes or whole for axes, whole in zip(gradient_axes, spec))),
      self.specs,
      self.gradient_axes,
      is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def psum_over(x: Array, axes: tuple[str, ...]) -> Array:
  return jax.lax.psum(x, axes) if axes else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def chunked_loss(
  loss_fn: Callable, sharding: LossSharding, chunk: int, head: PyTree, *rows: Array
) -> tuple[Float[Array, ''], Sums]:
  """`loss_fn(head, *rows)` of rows [B, T, …], summed over chunks of at most `chunk` tokens and over devices.

  The loss is linear in its own cotangent, so the gradient of each chunk is computed together with its logits,
  which are neither stored nor recomputed. Only the loss has a gradient, with respect to `head` and the first
  of `rows`; the metrics have none.

  On a mesh a device computes the logits of its own rows and of its own part of the vocabulary, which a
  `VocabShard` describes to `loss_fn`. The head is gathered along the rest once for all chunks, and its
  gradient is loss_fn over devices once.
  """

  def run_local(head, *rows):
    return _sum_chunks(loss_fn, head, _split(rows, sharding, chunk))

  if not sharding.is_sharded:
    return run_local(head, *rows)
  total, numbers, of_rows = sharding.run(
    lambda head, *rows: sharding.sum_over_devices(*run_local(head, *rows)), head, rows, sharding.total_specs
  )
  return total, numbers | of_rows


def _split(rows, sharding, chunk):
  n = chunk_count(*rows[0].shape[:2], max(1, chunk // shard_count(sharding.rows)) if chunk else 0)
  return tuple(split_into_chunks(x, n) for x in rows)


def _sum_chunks(loss_fn, head, rows):
  def add(total, piece):
    return jax.tree.map(jnp.add, total, loss_fn(head, *piece)), None

  return jax.lax.scan(add, _zeros(loss_fn, head, *(x[0] for x in rows)), rows)[0]


def _forward(loss_fn, sharding, chunk, head, *rows):
  def run_local(head, *rows):
    (total, to_head), to_features = _gradient(loss_fn, head, _split(rows, sharding, chunk))
    return total, to_head, merge_chunks(to_features)

  def part(head, *rows):
    total, to_head, to_features = run_local(head, *rows)
    to_head = jax.tree.map(sharding.reduce_gradient, to_head, sharding.specs, sharding.gradient_axes)
    return *sharding.sum_over_devices(*total), to_head, psum_over(to_features, sharding.vocab)

  others = (None,) * (len(rows) - 1)  # they have no gradient
  if not sharding.is_sharded:
    total, *gradients = run_local(head, *rows)
    return total, (gradients, others)
  of_features = PartitionSpec(sharding.batch or None, sharding.length or None)
  total, numbers, of_rows, *gradients = sharding.run(
    part, head, rows, (*sharding.total_specs, sharding.gradient_specs, of_features)
  )
  return (total, numbers | of_rows), (gradients, others)


def _gradient(loss_fn, head, rows):
  gradient = jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=True)

  def add(total, piece):
    with reduction_dtype(None):  # chunks of one device
      values, (to_head, to_features) = gradient(head, *piece)
    return jax.tree.map(jnp.add, total, (values, to_head)), to_features

  zeros = _zeros(loss_fn, head, *(x[0] for x in rows)), jax.tree.map(jnp.zeros_like, head)
  return jax.lax.scan(add, zeros, rows)


def _backward(loss_fn, sharding, chunk, residuals, cotangents):
  gradients, others = residuals
  to_head, to_features = jax.tree.map(lambda x: x * cotangents[0].astype(x.dtype), gradients)
  return to_head, to_features, *others


chunked_loss.defvjp(_forward, _backward)


def _zeros(f, *args):
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(f, *args))
