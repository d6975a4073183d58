"""Trackio, a local dashboard."""

import contextlib
import dataclasses
import io

from tfm.errors import importing_extra
from tfm.training.sinks.protocol import Sink, Writer


@dataclasses.dataclass(frozen=True)
class Trackio(Sink):
  """Writes metrics and config to Trackio's local store; `trackio show --project=tfm` shows them.

  Attributes:
    project: where the run appears.
    space: a Hugging Face Space to send them to; None: this machine only (TRACKIO_DIR, by default in the
      user's cache folder).
  """

  project: str = 'tfm'
  space: str | None = None

  def import_package(self):
    with importing_extra('trackio'):
      import trackio
    return trackio

  def open(self, run):
    trackio = self.import_package()
    with _quiet():
      started = trackio.init(
        project=self.project,
        name=f'{run.name} {run.id}',  # its names identify runs
        space_id=self.space,
        config=dict(run.config),
        resume='allow',
        embed=False,
      )
    return TrackioWriter(started)


class TrackioWriter(Writer):
  """Logs rows of a Trackio run."""

  def __init__(self, started):
    self._started = started

  def write(self, step, values):
    self._started.log(dict(values), step=step)

  def close(self):
    with _quiet():
      self._started.finish()


def _quiet():
  """Trackio prints to stdout, which belongs to the command."""
  return contextlib.redirect_stdout(io.StringIO())
