"""Bytes on one device: worked out from shapes and jaxprs, without compiling, and what a device reports."""

import os
import resource
import sys
from collections.abc import Callable

import flax.linen as nn
import jax
from jax.extend.core import Jaxpr, Var, jaxprs_in_params
from jax.sharding import AbstractMesh, Mesh

from tfm.errors import require
from tfm.parallel.sharding import Rules, named_shardings
from tfm.shapes import PyTree


# Results without memory of their own: views of an array, and constants that XLA computes where they are read.
VIEWS = 'reshape', 'squeeze', 'sharding_constraint', 'name'
FREE = 'broadcast_in_dim', 'iota'
# Of a process that makes training steps on a CPU: what is resident beside its arrays (imports, programs,
# buffers of products), and about what compiling takes. Measured with jax 0.10.2 (docs/results/speed.md);
# tests/commands/test_inspect.py measures it again.
BESIDE_ARRAYS, COMPILING = 340 * 2**20, 520 * 2**20


def total_bytes(tree: PyTree) -> int:
  """Bytes of a tree of (abstract, boxed) arrays."""
  return sum(_bytes(x) for x in jax.tree.leaves(nn.unbox(tree)))


def on_device(boxed: PyTree, mesh: Mesh | AbstractMesh, rules: Rules) -> int:
  """Bytes of one device's part of a boxed (abstract) tree.

  Raises:
    ValueError: if the mesh does not divide some array.
  """

  def part(x, sharding):
    return _bytes(jax.ShapeDtypeStruct(sharding.shard_shape(x.shape), x.dtype))

  return sum(jax.tree.leaves(jax.tree.map(part, nn.unbox(boxed), named_shardings(boxed, mesh, rules))))


def capacity() -> int:
  """Bytes of memory of a local device; on CPUs the devices share the machine's."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if 'bytes_limit' in stats:
    return stats['bytes_limit']
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // jax.local_device_count()


def peak_usage() -> int:
  """The most bytes so far of the fullest local device; on CPUs of this process."""
  stats = [device.memory_stats() or {} for device in jax.local_devices()]
  if all('peak_bytes_in_use' in each for each in stats):
    return max(each['peak_bytes_in_use'] for each in stats)
  unit = 1 if sys.platform == 'darwin' else 1024  # macOS counts bytes
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_peak(allocated: int, saved: int = 0) -> int:
  """The most resident bytes of a process that makes training steps on one CPU device.

  Args:
    allocated: the bytes of parameters, gradients, optimizer and activations.
    saved: of those, the bytes that go into a checkpoint. Orbax writes it beside the next steps from a copy,
      by way of another in the format of the files.
  """
  return max(BESIDE_ARRAYS + allocated + 2 * saved, COMPILING)


def require_capacity(needed: dict[str, int], remedy: str, available: int | None = None) -> None:
  """Raises ValueError if a device has too little memory.

  Args:
    needed: what takes it → the least bytes on one device.
    remedy: what to change.
    available: bytes of one device; None: `capacity`.
  """
  total, available = sum(needed.values()), capacity() if available is None else available
  require(
    total <= available,
    f'this needs at least {total / 2**30:,.1f} GiB on each device ('
    + ', '.join(f'{name}: {size / 2**30:,.1f}' for name, size in needed.items())
    + f'), which has {available / 2**30:,.1f} GiB; {remedy}',
  )


def activations(
  loss: Callable[[PyTree, PyTree], jax.Array],
  params: PyTree,
  batch: Callable[[int], PyTree],
  rows: int,
  share: float = 1.0,
) -> int:
  """An estimate of the bytes that one device needs beside parameters, gradients and optimizer state.

  It is the `peak` of the gradient of the loss over the rows of one device, with remat, kernel and
  chunked loss as configured. What does not grow with the rows (cast or transposed weights) counts
  as far as one device holds the weights.

  Args:
    loss: (params, batch) → scalar; params: abstract, unboxed.
    batch: a number of rows → abstract batch; rows: of one device and microbatch.
    share: the part of `params` that one device holds.
  """

  def bytes_of(n):
    return peak(jax.make_jaxpr(jax.grad(loss))(params, batch(n)).jaxpr)

  bytes_here = bytes_of(rows)
  if share == 1:
    return bytes_here
  constant = min(max(0, 2 * bytes_of(1) - bytes_of(2)), bytes_here)
  return round(bytes_here - (1 - share) * constant)


def peak(jaxpr: Jaxpr) -> int:
  """The most bytes that are alive at once between inputs and outputs, equations run in their order.

  A value dies after its last use; an inner jaxpr adds its own peak to what is alive around it. XLA
  fuses some values away and keeps others longer: its temporaries are within some 15 % (tested on the CPU).
  """
  owner = {}  # of a view: the value whose bytes it reads
  for eqn in jaxpr.eqns:
    if eqn.primitive.name in VIEWS and isinstance(eqn.invars[0], Var):
      owner[eqn.outvars[0]] = owner.get(eqn.invars[0], eqn.invars[0])

  def owners(variables):
    return {owner.get(v, v) for v in variables if isinstance(v, Var)}

  last = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in owners(eqn.invars)}
  outside = owners((*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars))
  sizes, alive, most = {}, 0, 0
  for i, eqn in enumerate(jaxpr.eqns):
    created = set() if eqn.primitive.name in VIEWS + FREE else set(eqn.outvars) - outside
    sizes |= {v: _bytes(v.aval) for v in created}
    alive += sum(sizes[v] for v in created)
    most = max(most, alive + max(map(peak, jaxprs_in_params(eqn.params)), default=0))
    alive -= sum(sizes.pop(v, 0) for v in owners(eqn.invars) | created if last.get(v, i) == i)
  return most


def _bytes(x) -> int:
  """Of an array's shape and type; keys, tokens and arrays in host memory count for nothing."""
  if getattr(x, 'memory_space', None) == jax.memory.Space.Host:
    return 0
  sized = hasattr(x, 'shape') and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)
  return x.size * x.dtype.itemsize if sized else 0
