"""The kernel that suits the case."""

import dataclasses
import functools
import importlib
import logging

from tfm import spec
from tfm.kernels.protocol import Kernel
from tfm.parallel import mesh


@dataclasses.dataclass(frozen=True)
class Auto(Kernel):
  """The first kernel of `ORDER` that suits the platform, the shapes and what is asked; logged once with the reasons.

  A kernel suits if it can serve and says that it is worth it (`Kernel.unsuited`).
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
          f'kernel: auto takes {name} on {platform}'
          + ''.join(f'; not {other}: {why}' for other, why in reasons)
        )
        return kernel.attend(q, k, v, inputs)
      reasons.append((name, reason))
    raise ValueError(f"kernel='auto' finds none: {reasons}")


_log = logging.getLogger(__name__)

# First that for rows which a mesh cuts; then from the most specialised to the specification, which serves everything.
ORDER = ('ring', 'splash', 'cudnn', 'tokamax', 'chunked', 'dense')


@functools.cache
def load_kernel(name: str) -> Kernel:
  """The kernel of a file beside this one, as its bare name makes it."""
  return spec.build(name, importlib.import_module('tfm.kernels'), Kernel)


@functools.cache
def _log_once(text: str) -> None:
  """Logs a text the first time that it comes."""
  _log.info(text)
