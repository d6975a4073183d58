"""Weights & Biases, online or offline."""

import dataclasses

from tfm.errors import importing_extra
from tfm.training.progress_line import print_status
from tfm.training.sinks.protocol import Sink, Writer


@dataclasses.dataclass(frozen=True)
class Wandb(Sink):
  """Sends metrics and config to Weights & Biases; its files are in DIR/wandb.

  A run that resumes continues under its identifier. The x axis is the logged value `step`, because the
  service ignores rows whose own step is not above the last.

  Attributes:
    project, entity: where the run appears; None: the entity that is logged in.
    name: of the run; None: the last two parts of its folder.
    mode: 'online', 'offline' (`wandb sync DIR/wandb/offline-run-…` sends it later) or 'disabled'; None: as
      the environment variable WANDB_MODE says, else online.
  """

  project: str = 'tfm'
  entity: str | None = None
  name: str | None = None
  mode: str | None = None

  def import_package(self):
    with importing_extra('wandb'):
      import wandb
    return wandb

  def open(self, run):
    wandb = self.import_package()
    started = wandb.init(
      project=self.project,
      entity=self.entity,
      name=self.name or run.name,
      id=run.id,
      resume='allow',
      dir=str(run.workdir),
      config=dict(run.config),
      mode=self.mode,
      reinit='create_new',  # the runs of an ensemble are open at the same time
      settings=wandb.Settings(silent=True, console='off'),  # the terminal belongs to the progress bar
    )
    started.define_metric('*', step_metric='step')
    if started.offline:
      print_status(f'wandb: offline; wandb sync {started.settings.sync_dir} sends the run')
    else:
      print_status(f'wandb: {started.url}')
    return WandbWriter(started)


class WandbWriter(Writer):
  """Logs rows of a wandb run."""

  def __init__(self, started):
    self._started = started

  def write(self, step, values):
    self._started.log(dict(values, step=step))

  def close(self):
    self._started.finish()
