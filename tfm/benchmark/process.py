"""One measurement is one process, so that peak memory is per measurement and frameworks do not mix."""

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
  """A measurement needs more memory than this machine has."""


def measure(module: str, *args: str) -> dict[str, float]:
  """Runs `python -m module *args`; returns the JSON object that it prints as its last line.

  Raises:
    OutOfMemory: if it failed for lack of memory.
    RuntimeError: if it failed otherwise.
  """
  done = subprocess.run(
    [sys.executable, '-m', module, *args], capture_output=True, text=True, encoding='utf-8'
  )
  if done.returncode:
    error = (
      OutOfMemory
      if any(text in done.stderr for text in OUT_OF_MEMORY_TEXTS) or done.returncode == -9
      else RuntimeError
    )
    raise error(f'{module} {" ".join(args)} failed:\n{done.stderr}')
  return json.loads(done.stdout.splitlines()[-1])


# What Python, XLA, PyTorch and the C++ library print when memory runs out.
OUT_OF_MEMORY_TEXTS = (
  'OutOfMemory',
  'MemoryError',
  'RESOURCE_EXHAUSTED',
  "can't allocate memory",
  'not enough memory',
  'bad_alloc',
)


def limit_memory() -> int:
  """Limits this process to the memory that is free now, so that it fails first; returns it in bytes."""
  free = os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
  resource.setrlimit(resource.RLIMIT_DATA, (free, free))
  return free


def peak_memory() -> float:
  """The largest resident size of this process so far, in MiB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_memory(run: Callable) -> float:
  """How far the resident size of this process rises above what it is while `run()` runs, in MiB (Linux)."""
  # 5 resets the peak to the current size.
  pathlib.Path('/proc/self/clear_refs').write_text('5', encoding='utf-8')
  before = _read_status('VmRSS')
  run()
  return (_read_status('VmHWM') - before) / 1024


def _read_status(field: str) -> int:
  """A field of /proc/self/status, in KiB."""
  lines = pathlib.Path('/proc/self/status').read_text(encoding='utf-8').splitlines()
  return next(int(line.split()[1]) for line in lines if line.startswith(f'{field}:'))


def median_seconds(run: Callable, min_seconds: float = 3, max_runs: int = 20) -> float:
  """The median time of `run()`, run 3 to `max_runs` times for about `min_seconds`; it must be warmed up."""
  times = []
  while len(times) < 3 or (sum(times) < min_seconds and len(times) < max_runs):
    start = time.perf_counter()
    run()
    times.append(time.perf_counter() - start)
    if times[0] > 20:
      break  # one run is long enough
  return sorted(times)[len(times) // 2]


def print_passes(forward: Callable, make_both: Callable[[], Callable]) -> None:
  """Prints {"forward": {"ms": …, "mib": …}, "both": …} as JSON: the forward pass, and forward with backward.

  `make_both()` returns the second function; its entry is null if it does not fit into memory.
  """
  results = {}
  for name, make in (('forward', lambda: forward), ('both', make_both)):
    try:
      run = make()
      # The first run allocates what later runs reuse, so its peak counts.
      results[name] = dict(mib=measure_memory(run), ms=1000 * median_seconds(run))
    except (OutOfMemory, MemoryError, RuntimeError) as error:
      if name == 'forward' or not any(
        text in f'{type(error).__name__}: {error}' for text in OUT_OF_MEMORY_TEXTS
      ):
        raise
      results[name] = None
  print(json.dumps(results))


def describe_machine() -> str:
  """Cores, architecture and versions."""
  names = [name for name in ('jax', 'flax', 'torch', 'transformers') if importlib.util.find_spec(name)]
  versions = ', '.join(f'{name} {importlib.metadata.version(name)}' for name in names)
  return f'{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {versions}'
