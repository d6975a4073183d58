"""What the folders of runs say about them: state, step, best loss, config. JAX is not needed."""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfm.config.difference import is_free
from tfm.config.schema import leaves
from tfm.errors import describe, parsing, read_json_object, require
from tfm.runs.lock import is_locked
from tfm.training import metrics
from tfm.training.stop_rule import parse_stop_rule


@dataclasses.dataclass(frozen=True)
class RunSummary:
  """A run and how far it is.

  Attributes:
    workdir: its folder; fields: path → value of its config.
    state: 'running', 'finished', 'stopped', 'diverged', or 'imported' for published weights.
    step, steps: the last step that was logged, and the last of its config.
    best: the step and the loss of the best validation; None without one.
    reason: why it diverged; ''.
  """

  workdir: pathlib.Path
  fields: Mapping[str, Any]
  state: str
  step: int
  steps: int
  best: tuple[int, float] | None
  reason: str = ''

  def __str__(self):
    best = f', best validation loss {self.best[1]:.4g} at step {self.best[0]}' if self.best else ''
    return f'{self.workdir}: {self.state} at step {self.step} of {self.steps}{best}' + (
      f'; {self.reason}' if self.reason else ''
    )


def is_run(folder: pathlib.Path) -> bool:
  """Whether a folder is that of a run."""
  return (folder / 'config.json').is_file() and any(
    (folder / name).exists() for name in ('metrics.jsonl', 'checkpoints')
  )


def require_run(workdir: str | os.PathLike) -> None:
  """Raises ValueError for a folder without the checkpoints of a run."""
  folder = pathlib.Path(workdir)
  require(
    (folder / 'checkpoints').is_dir(),
    f'--workdir={workdir} holds a run without checkpoints; the command that started it trains it again'
    if is_run(folder)
    else f'--workdir={workdir} holds no run; tfm train makes one',
  )


def walk_folders(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder and all below it, in the order of their names, but nothing inside a run."""
  for path, names, _ in os.walk(folder):
    yield pathlib.Path(path)
    names.sort()
    if is_run(pathlib.Path(path)):
      names.clear()  # no run is in another


def find_run_dirs(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """The folders of all runs in a folder, itself included, in the order of their names."""
  return filter(is_run, walk_folders(folder))


def summarize_run(workdir: pathlib.Path) -> RunSummary:
  """The summary of a run.

  Raises:
    ValueError: if the folder is not that of a run, or a file in it cannot be read.
  """
  require(is_run(workdir), f'{workdir} holds no run; tfm runs DIR lists those in a folder')
  path, kind = workdir / 'config.json', 'the config of a run'
  fields = dict(leaves(read_json_object(path, kind)))
  steps = fields.get('training.steps')
  require(isinstance(steps, int), f'{path} is not {kind}')
  rows = metrics.read(workdir / 'metrics.jsonl')
  step = rows[-1]['step'] if rows else 0
  validations = metrics.read_validations(workdir, step)
  losses = [(row['loss'], row['step']) for row in validations if 'loss' in row]
  with parsing(path, kind):
    is_ended = parse_stop_rule(fields.get('training.stop_when', 'never'))(validations)
  best, reason = min(losses, default=None), rows[-1].get('diverged', '') if rows else ''
  if is_locked(workdir):
    state = 'running'
  elif reason:
    state = 'diverged'
  elif step >= steps or is_ended:
    state = 'finished'
  else:
    state = 'imported' if (workdir / 'checkpoints' / '0').is_dir() else 'stopped'
  return RunSummary(workdir, fields, state, step, steps, best and best[::-1], reason)


def summarize_runs(folder: pathlib.Path) -> tuple[list[RunSummary], list[str]]:
  """The summaries of all runs in a folder, and a sentence for each that cannot be read.

  Raises:
    ValueError: if there is no such folder.
  """
  require(folder.is_dir(), f'{folder} is no folder')
  runs, unreadable = [], []
  for workdir in find_run_dirs(folder):
    try:
      runs.append(summarize_run(workdir))
    except (ValueError, OSError) as error:
      unreadable.append(f'left out: {describe(error)}')
  return runs, unreadable


def list_changes(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
  """For each run, path → value of the config fields in which it differs from most of the runs.

  Fields that do not change results are left out (`is_free`). Of values that are equally frequent the
  first one counts as that of most runs.
  """
  paths = dict.fromkeys(path for run in runs for path in run.fields if not is_free(path))
  usual = {path: _most_common([repr(run.fields.get(path)) for run in runs]) for path in paths}
  return [
    {path: run.fields.get(path) for path in paths if repr(run.fields.get(path)) != usual[path]}
    for run in runs
  ]


def _most_common(values: Sequence[str]) -> str:
  return collections.Counter(values).most_common(1)[0][0]
