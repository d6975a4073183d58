"""Memory of the host to which a device moves what it does not need for a while."""

import jax


HOST_MEMORY = 'pinned_host'  # the memory kind, in JAX's words


def has_host_memory(device: jax.Device) -> bool:
  """Whether a device can move arrays to the memory of its host."""
  # A GPU that is not attached lists no kinds of memory.
  return device.platform == 'gpu' or HOST_MEMORY in {memory.kind for memory in device.addressable_memories()}
