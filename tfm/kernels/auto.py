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

  Logs its choice and the reason against the last kernel before it that runs on this platform; at the level
  DEBUG, the reasons against all of them (`Kernel.unavailable_reason`, `unsupported_reason`,
  `unpreferred_reason`).
  """

  names_residuals = True
  supports_trees = True

  def attend(self, q, k, v, inputs):
    reasons, why, platform = [], '', mesh.current_platform()
    for name in ORDER:
      kernel = load_kernel(name)
      unavailable = kernel.unavailable_reason(platform)
      reason = (
        unavailable
        or kernel.unsupported_reason(q, k, v, inputs)
        or kernel.unpreferred_reason(q, k, v, inputs, platform)
      )
      if not reason:
        details = f'kernels before {name}: {"; ".join(reasons) or "none"}'
        # Each layer and each compiled function chooses anew; an `OnceFilter` shows a kernel and details once.
        _log.info(f'kernel: auto chose {name} on {platform}{why}', extra=dict(once=name))
        _log.debug(details, extra=dict(once=details))
        return kernel.attend_under_name(q, k, v, inputs)
      reasons.append(f'{name}: {reason}')
      why = why if unavailable else f', not {reasons[-1]}'
    raise ValueError(f"kernel='auto' found no kernel for these inputs: {'; '.join(reasons)}")


_log = logging.getLogger(__name__)

# The kernel for sharded rows, then from the most specialised to the specification, which supports everything.
ORDER = ('ring', 'splash', 'cudnn', 'tokamax', 'flash', 'chunked', 'dense')


@functools.cache
def load_kernel(name: str) -> Kernel:
  """The kernel of that name with its default settings."""
  return spec.build(name, importlib.import_module('tfm.kernels'), Kernel)
