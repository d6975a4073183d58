"""How fast a training is, and how long it still takes."""

import contextlib
import time
from collections.abc import Iterator


class Throughput:
  """Counts tokens and time since the first step of this process, which compiles.

  Args:
    flops_per_token, peak_flops: per token of a training step, and of all devices; None if unknown.
  """

  def __init__(self, flops_per_token: float | None = None, peak_flops: float | None = None):
    self._flops_per_token, self._peak_flops = flops_per_token, peak_flops
    self._tokens, self._steps, self._since, self._excluded = 0.0, 0, None, 0.0

  def record_step(self, tokens: float) -> None:
    """Counts a step whose metrics are known."""
    if self._since is None:
      self._since = time.perf_counter()
    else:
      self._tokens += tokens
      self._steps += 1

  @contextlib.contextmanager
  def exclude(self) -> Iterator[None]:
    """Excludes the block, such as an evaluation, from the rate; the time left includes its like."""
    before = time.perf_counter()
    yield
    if self._since is not None:
      self._excluded += time.perf_counter() - before

  def tokens_per_second(self) -> float:
    """0.0 before the second step."""
    return self._tokens / (self._elapsed() - self._excluded) if self._tokens else 0.0

  def mfu(self) -> float | None:
    """Model FLOPs utilisation: tokens/s · FLOPs per token / peak (Chowdhery et al. 2022, app. B); None if
    a factor is unknown.
    """
    if not (self._tokens and self._flops_per_token and self._peak_flops):
      return None
    return self.tokens_per_second() * self._flops_per_token / self._peak_flops

  def seconds_left(self, steps: int) -> float | None:
    """Seconds of so many more steps, if they take as long as those so far, with evaluations and saves; None
    before the second step.
    """
    return steps * self._elapsed() / self._steps if self._steps else None

  def _elapsed(self) -> float:
    return time.perf_counter() - self._since
