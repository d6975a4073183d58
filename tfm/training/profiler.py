"""A profile of a few training steps, for TensorBoard and Perfetto."""

import dataclasses

import jax

from tfm.shapes import PyTree
from tfm.training.progress_line import print_status


# Steps before the profile begins: compilation, and steps that fill the queues.
WARMUP = 2


@dataclasses.dataclass(frozen=True)
class Profiler:
  """Profiles `steps` steps from the third on, or none if `steps` is 0.

  Attributes:
    directory: where the trace is written.
    first, last: the step before the first one, and the last one, of the run.
  """

  directory: str
  steps: int
  first: int
  last: int

  @property
  def end(self) -> int:
    """The last profiled step."""
    return min(self.first + WARMUP + self.steps, self.last)

  def start_before(self, step: int) -> None:
    """Starts the trace if `step` is the first one to profile."""
    if self.steps and step == self.first + WARMUP + 1:
      jax.profiler.start_trace(self.directory)

  def stop_after(self, step: int, state: PyTree) -> None:
    """Writes the trace if `step` is the last one to profile, once `state` is computed."""
    if self.steps and step == self.end > self.first + WARMUP:
      jax.block_until_ready(state)
      jax.profiler.stop_trace()
      print_status(f'profile of {step - self.first - WARMUP} steps: {self.directory}')
