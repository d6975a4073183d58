"""Memory of the host to which a device moves what it does not need for a while."""

import jax

from tfm.shapes import PyTree


HOST_MEMORY = 'pinned_host'  # the memory kind, in JAX's words


def has_host_memory(device: jax.Device) -> bool:
  """Whether a device can move arrays to the memory of its host."""
  # A GPU that is not attached lists no kinds of memory.
  return device.platform == 'gpu' or HOST_MEMORY in {memory.kind for memory in device.addressable_memories()}


def in_host_memory(shardings: PyTree) -> PyTree:
  """The shardings of the same parts in the memory of the hosts."""
  return jax.tree.map(lambda sharding: sharding.with_memory_kind(HOST_MEMORY), shardings)
