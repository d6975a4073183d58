"""Status messages and the live progress line of a training run, on stderr."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


console = Console(stderr=True)


def print_status(text: str) -> None:
  """Prints to stderr, above the live line if there is one, without wrapping."""
  console.print(text, highlight=False, markup=False, soft_wrap=True)


# Seconds between two plain lines, where stderr is not a terminal.
PERIOD = 15.0


class Line:
  """step, loss, tokens/s, MFU of a known chip, time left: one live line, or a plain line every `PERIOD`.

  Args:
    first, steps: the step to start after, and the last step.
    flops_per_token, peak_flops: per token of a training step, and of all devices; None if unknown.
  """

  def __init__(self, first: int, steps: int, flops_per_token: float | None, peak_flops: float | None):
    self.flops_per_token, self.peak_flops = flops_per_token, peak_flops
    self.progress = Progress(
      TextColumn('training'),
      BarColumn(),
      MofNCompleteColumn(),
      TextColumn('{task.fields[status]}'),
      TimeRemainingColumn(elapsed_when_finished=True),
      console=console,
      refresh_per_second=4,
    )
    self.task = self.progress.add_task('training', total=steps, completed=first, status='compiling …')
    self.steps, self.tokens, self.timed, self.since, self.printed = steps, 0.0, 0, None, time.perf_counter()

  def __enter__(self) -> 'Line':
    if console.is_terminal:
      self.progress.start()
    return self

  def __exit__(self, *error) -> None:
    self.progress.stop()

  def advance(self, step: int, tokens: float, loss: float) -> None:
    """Updates the line after a step whose metrics are known."""
    if self.since is None:
      # The first step compiles; the clock starts after it.
      self.since = time.perf_counter()
    else:
      self.tokens += tokens
      self.timed += 1
    self.progress.update(self.task, completed=step, status=self.status(loss))
    now = time.perf_counter()
    if not console.is_terminal and now - self.printed > PERIOD and self.tokens:
      self.printed = now
      left = (self.steps - step) * (now - self.since) / self.timed
      print_status(f'step {step} of {self.steps}  {self.status(loss)}  {left / 60:.1f} minutes left')

  def status(self, loss: float) -> str:
    """`loss 2.345  12.3k tokens/s  MFU 41.2 %`."""
    parts = [f'loss {loss:.3f}']
    if self.tokens:
      parts.append(f'{self.rate() / 1000:.1f}k tokens/s')
      if self.peak_flops and self.flops_per_token:
        parts.append(f'MFU {self.mfu():.1%}')
    return '  '.join(parts)

  def rate(self) -> float:
    """Tokens per second since the first step of this process, without the time of evaluation."""
    return self.tokens / (time.perf_counter() - self.since) if self.tokens else 0.0

  def mfu(self) -> float:
    """Model FLOPs utilisation: rate · FLOPs per token / peak (Chowdhery et al. 2022, app. B)."""
    return self.rate() * self.flops_per_token / self.peak_flops

  def pause(self) -> float:
    """The time at which training pauses, for `resume`."""
    return time.perf_counter()

  def resume(self, paused: float) -> None:
    """Excludes the time since `pause` from the rate."""
    if self.since is not None:
      self.since += time.perf_counter() - paused
