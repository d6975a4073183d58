"""One measurement is one process: its peak memory is its own, and frameworks do not meet."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable


class OutOfMemory(RuntimeError):
  """A measurement that this machine has not the memory for."""


def measure(module: str, *what: str) -> dict[str, float]:
  """What `python -m module *what` prints as JSON in its last line.

  Raises:
    OutOfMemory: if that was why it failed.
    RuntimeError: if it failed otherwise.
  """
  done = subprocess.run([sys.executable, '-m', module, *what], capture_output=True, text=True)
  if done.returncode:
    kind = (
      OutOfMemory if any(sign in done.stderr for sign in SIGNS) or done.returncode == -9 else RuntimeError
    )
    raise kind(f'{module} {" ".join(what)} failed:\n{done.stderr}')
  return json.loads(done.stdout.splitlines()[-1])


# How Python, XLA, PyTorch and the C++ library say that there is no more.
SIGNS = (
  'OutOfMemory',
  'MemoryError',
  'RESOURCE_EXHAUSTED',
  "can't allocate memory",
  'not enough memory',
  'bad_alloc',
)


def limit_memory() -> int:
  """Lets this process have the memory that is free now, in bytes, and no more: beyond, it fails instead of the machine."""
  free = os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  resource.setrlimit(resource.RLIMIT_DATA, (free, free))
  return free


def peak_memory() -> float:
  """The largest resident size of this process so far, in MiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_of(run: Callable) -> float:
  """How far the resident size of this process rises above what it is while `run()` runs, in MiB (Linux)."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')  # the highest so far is now the present size
  before = _status('VmRSS')
  run()
  return (_status('VmHWM') - before) / 1024


def _status(field: str) -> int:
  """A line of /proc/self/status, in KiB."""
  lines = pathlib.Path('/proc/self/status').read_text().splitlines()
  return next(int(line.split()[1]) for line in lines if line.startswith(f'{field}:'))


def seconds(run: Callable, least: float = 0.5, most: int = 20) -> float:
  """The median time of `run()`, repeated for `least` seconds and 3 to `most` times; it has run before."""
  times = []
  while len(times) < 3 or (sum(times) < least and len(times) < most):
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
    if times[0] > 20:
      break  # long enough to be told from one
  return sorted(times)[len(times) // 2]


def report(forward: Callable, both: Callable[[], Callable]) -> None:
  """Prints {"forward": {"ms": …, "mib": …}, "both": …} as JSON: the forward pass, and it with the backward pass.

  `both()` makes the second run; where there is no memory for it, its entry is null.
  """
  results = {}
  for name, make in (('forward', lambda: forward), ('both', both)):
    try:
      run = make()
      # The first run may set up what stays; its peak is what counts.
      results[name] = dict(mib=memory_of(run), ms=1000 * seconds(run))
    except (OutOfMemory, MemoryError, RuntimeError) as error:
      if name == 'forward' or not any(sign in f'{type(error).__name__}: {error}' for sign in SIGNS):
        raise
      results[name] = None
  print(json.dumps(results))


def machine() -> str:
  """Where and with what this is measured."""
  names = [name for name in ('jax', 'flax', 'torch', 'transformers') if importlib.util.find_spec(name)]
  versions = ', '.join(f'{name} {importlib.metadata.version(name)}' for name in names)
  return f'{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {versions}'
