"""The files of a study on disk.

DIR/arms/ARM/arm.json            the arm's learning rate, machines, dates, seconds, errors, diverged seeds
DIR/arms/ARM/time.json           match='time': seconds of its training step and of the base's
DIR/arms/ARM/error.txt           the traceback of the last error
DIR/arms/ARM/lock                held by the process that trains the arm
DIR/arms/ARM/seedN/              an ordinary run, as tfm train writes it
DIR/arms/ARM/rateR/              the run that tried the learning rate R
DIR/arms/ARM/rungS/rateR/        the same for S steps, to drop rates early
DIR/arms/ARM/seedN/measured.json the values of the measures, by the measure's spec

Reading them needs no JAX.
"""

import contextlib
import json
import os
import pathlib
import traceback
from collections.abc import Mapping
from typing import Any

from tfm.errors import parse_json, parsing, read_json_object
from tfm.studies.records import ArmRecord, Measured, StepTime, check_type
from tfm.studies.study import folder_name
from tfm.training import metrics
from tfm.training.atomic_files import write_atomically


def arm_dir(workdir: pathlib.Path, name: str) -> pathlib.Path:
  """The folder of an arm."""
  return workdir / 'arms' / folder_name(name)


def read_arm(folder: pathlib.Path) -> ArmRecord:
  """The content of an arm's arm.json; empty without the file.

  Raises:
    FileError: if it is not what `ArmRecord` says.
  """
  return _read_json(folder / 'arm.json', ArmRecord, 'the record of an arm')


def write_arm(folder: pathlib.Path, record: Mapping[str, Any]) -> None:
  """Writes an arm's arm.json."""
  _write_json(folder / 'arm.json', record)


def read_measured(run_dir: pathlib.Path) -> Measured:
  """The values of the measures of a run, by the measure's spec; empty if nothing was measured.

  Raises:
    FileError: if the file holds something else.
  """
  return _read_json(run_dir / 'measured.json', Measured, 'the values of measures')


def write_measured(run_dir: pathlib.Path, measured: Mapping[str, Any]) -> None:
  """Writes the values of the measures of a run."""
  _write_json(run_dir / 'measured.json', measured)


def read_time(folder: pathlib.Path) -> StepTime | None:
  """The content of an arm's time.json; None without the file.

  Raises:
    FileError: if it is not what `StepTime` says.
  """
  return _read_json(folder / 'time.json', StepTime, 'the time of an arm') or None


def write_time(folder: pathlib.Path, time: StepTime) -> StepTime:
  """Writes an arm's time.json unless another process has written it before; returns what the file holds."""
  _write_once(folder / 'time.json', time)
  return read_time(folder)


def write_traceback(folder: pathlib.Path) -> pathlib.Path:
  """Writes the traceback of the current exception to an arm's error.txt; returns the file."""
  path = folder / 'error.txt'
  path.write_text(traceback.format_exc(), encoding='utf-8')
  return path


def has_error(folder: pathlib.Path) -> bool:
  """Whether the arm failed, or a measure of it, in the last call."""
  record = read_arm(folder)
  return bool(record.get('error') or record.get('unmeasured'))


def has_started(folder: pathlib.Path) -> bool:
  """Whether any run of the arm has started."""
  return bool(read_arm(folder)) or any(folder.glob('*/config.json'))


def saved_steps(run_dir: pathlib.Path) -> list[int]:
  """The steps of a run's checkpoints, in order."""
  from tfm.training import checkpoint  # imports JAX

  if not (run_dir / 'checkpoints').is_dir():
    return []
  checkpoints = checkpoint.Checkpoints(run_dir)
  steps = sorted(checkpoints.steps())
  checkpoints.close()
  return steps


def last_step(run_dir: pathlib.Path) -> int:
  """The step of a run's last checkpoint; 0 without one."""
  return max(saved_steps(run_dir), default=0)


def final_metrics(run_dir: pathlib.Path) -> dict[str, float]:
  """The metrics of a run's last validation; empty without one."""
  lines = [line for line in metrics.read(run_dir / 'metrics.jsonl') if line['split'] == 'validation']
  return {name: value for name, value in lines[-1].items() if name not in ('step', 'split')} if lines else {}


def elapsed_seconds(folder: pathlib.Path) -> float:
  """Seconds spent on an arm: the larger of what arm.json and the goodput files of its runs record.

  After a kill only the goodput files hold the seconds of the killed process.
  """
  from tfm.training import goodput  # imports JAX

  # Runs that trained in one ensemble have equal goodput files, so each text counts once. An ensemble of
  # several arms divides its seconds among them.
  texts = {path.read_text(encoding='utf-8') for path in folder.rglob(goodput.FILE)}
  seconds = 0.0
  for text in texts:
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # skip unreadable files
      seconds += sum(parse_json(text)['seconds'].values())
  record = read_arm(folder)
  return max(record.get('seconds', 0.0), seconds / len(record.get('together') or [folder]))


def _write_once(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_name(f'{path.name}.{os.getpid()}')
  part.write_text(json.dumps(content, indent=2), encoding='utf-8')
  with contextlib.suppress(FileExistsError):
    os.link(part, path)  # atomic, and fails if the file exists
  part.unlink()


def _read_json(path: pathlib.Path, kind: Any, description: str) -> dict[str, Any]:
  """The content of a file, of a type of tfm/studies/records.py; empty without the file."""
  if not path.exists():
    return {}
  content = read_json_object(path, description)
  with parsing(path, description):
    check_type(content, kind)
  return content


def _write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  write_atomically(path, json.dumps(content, indent=2))
