"""Chooses the kernel by platform, shapes and inputs."""

import dataclasses
import functools
import importlib
import logging

from tfm import spec
from tfm.kernels.protocol import Kernel
from tfm.parallel import mesh


@dataclasses.dataclass(frozen=True)
class Auto(Kernel):
  """The first kernel of `ORDER` that is available, supports the inputs and is preferred for them.

  Logs each choice once, with the reasons against the kernels before it (`Kernel.unavailable_reason`,
  `unsupported_reason`, `unpreferred_reason`).
  """

  def attend(self, q, k, v, inputs):
    reasons, platform = [], mesh.current_platform()
    for name in ORDER:
      kernel = load_kernel(name)
      reason = (
        kernel.unavailable_reason(platform)
        or kernel.unsupported_reason(q, k, v, inputs)
        or kernel.unpreferred_reason(q, k, v, inputs, platform)
      )
      if not reason:
        _log_once(
          f'kernel: auto chose {name} on {platform}'
          + ''.join(f'; not {other}: {why}' for other, why in reasons)
        )
        return kernel.attend(q, k, v, inputs)
      reasons.append((name, reason))
    raise ValueError(f"kernel='auto' found no kernel for these inputs: {reasons}")


_log = logging.getLogger(__name__)

# The kernel for sharded rows, then from the most specialised to the specification, which supports everything.
ORDER = ('ring', 'splash', 'cudnn', 'tokamax', 'chunked', 'dense')


@functools.cache
def load_kernel(name: str) -> Kernel:
  """The kernel of that name with its default settings."""
  return spec.build(name, importlib.import_module('tfm.kernels'), Kernel)


@functools.cache
def _log_once(text: str) -> None:
  """Logs a text at its first call only."""
  _log.info(text)
