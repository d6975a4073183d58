"""Time on a device, whose work is queued."""

import time
from collections.abc import Callable
from typing import Any


def seconds_per_call(
  run: Callable[[], Any], wait: Callable[[Any], Any], seconds: float = 1.0, calls: int = 200
) -> float:
  """The mean time of `run()`, queued as often as fits into about `seconds`, at most `calls` times; `wait`
  waits for its result. It runs once before, so that it is compiled.
  """
  wait(run())
  start = time.perf_counter()
  wait(run())
  once = time.perf_counter() - start
  count = max(1, min(calls, int(seconds / max(once, 1e-9))))
  start = time.perf_counter()
  for _ in range(count):
    result = run()
  wait(result)
  return (time.perf_counter() - start) / count
