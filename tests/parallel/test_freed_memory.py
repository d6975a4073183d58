"""What a compiler has freed goes back to the system."""

import ctypes
import resource

import jax
import pytest

from tfm.parallel import freed_memory


LIBRARY = ctypes.CDLL(None)


def resident():
  with open('/proc/self/statm', encoding='ascii') as file:
    return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(LIBRARY, 'malloc_trim'), reason='the C library is not glibc')
def test_what_lies_below_a_piece_in_use_goes_back_after_a_long_compilation():
  freed_memory.return_after_compiling()
  LIBRARY.malloc.restype, LIBRARY.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
  pieces = [LIBRARY.malloc(10_000) for _ in range(10_000)]
  for piece in pieces:
    ctypes.memset(piece, 1, 10_000)
  most, above = pieces[:-100], pieces[-100:]  # glibc gives back by itself what nothing lies above
  before = resident()
  for piece in most:
    LIBRARY.free(piece)
  jax.monitoring.record_event_duration_secs(freed_memory.COMPILED, 0.01)
  assert resident() > before - 20e6, 'a short compilation is not worth it'
  jax.monitoring.record_event_duration_secs(freed_memory.COMPILED, 2.0)
  assert resident() < before - 80e6
  for piece in above:
    LIBRARY.free(piece)
