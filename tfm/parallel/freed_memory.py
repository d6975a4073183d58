"""Memory that compilers have freed, which the C library holds back."""

import ctypes
import functools

import jax


COMPILED = '/jax/core/compile/backend_compile_duration'  # JAX's event
SECONDS = 0.5  # a shorter compilation leaves little


@functools.cache
def return_after_compiling() -> None:
  """From now on what a compilation has freed goes back to the system.

  LLVM takes and frees many small pieces. glibc keeps these for others as small, and what is large, such as an
  array, does not fit into them. Where the C library is another, nothing changes.
  """
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)

  def on_event(event: str, seconds: float, **details: str) -> None:
    if event == COMPILED and seconds > SECONDS:
      trim(0)

  if trim is not None:
    jax.monitoring.register_event_duration_secs_listener(on_event)
