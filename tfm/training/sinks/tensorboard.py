"""Event files for TensorBoard."""

import dataclasses

from tfm.errors import importing_extra
from tfm.training.sinks.protocol import Sink, Writer


@dataclasses.dataclass(frozen=True)
class Tensorboard(Sink):
  """Writes DIR/events.out.tfevents.…; `tensorboard --logdir=DIR` shows them, DIR being a run or a folder of
  runs.

  After a kill, TensorBoard hides what was written after the last checkpoint.
  """

  def import_package(self):
    with importing_extra('tensorboard'):
      import tensorboardX
    return tensorboardX

  def open(self, run):
    return EventWriter(
      self.import_package().SummaryWriter(
        str(run.workdir),
        purge_step=run.step + 1 if run.step else None,
        filename_suffix=f'.{run.step}',  # names that differ only in their second would replace each other
      )
    )


class EventWriter(Writer):
  """Writes event files."""

  def __init__(self, events):
    self._events = events

  def write(self, step, values):
    for name, value in values.items():
      self._events.add_scalar(name, value, step)

  def close(self):
    self._events.close()
