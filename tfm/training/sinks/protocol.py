"""The sink slot: a program that shows the metrics of runs, such as TensorBoard."""

import abc
import contextlib
import dataclasses
import pathlib
import uuid
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tfm.training.atomic_files import write_atomically


ID_FILE = 'run_id'


@dataclasses.dataclass(frozen=True)
class LoggedRun:
  """The run whose metrics a sink gets.

  Attributes:
    workdir: its folder, where a sink may keep files.
    config: path → value of every field, resolved.
    step: where this process starts. After a kill, rows up to the last checkpoint are final; those after it
      are computed and written again, with equal values.
  """

  workdir: pathlib.Path
  config: Mapping[str, Any]
  step: int

  @property
  def name(self) -> str:
    """The last two parts of its path, such as runs/plays or rope/seed0."""
    return '/'.join(self.workdir.absolute().parts[-2:])

  @property
  def id(self) -> str:
    """What identifies the run, also when it resumes: the content of DIR/run_id, which is written once."""
    path = self.workdir / ID_FILE
    with contextlib.suppress(FileNotFoundError):
      return path.read_text(encoding='utf-8').strip()
    name = uuid.uuid4().hex[:16]
    write_atomically(path, f'{name}\n')
    return name


class Writer(abc.ABC):
  """Writes the metrics of one run."""

  @abc.abstractmethod
  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Writes values, named such as `train/loss`, at a step."""

  @abc.abstractmethod
  def close(self) -> None:
    """Writes what is left, at the end of the process."""


class Sink(abc.ABC):
  """A frozen dataclass, whose fields a spec sets."""

  @abc.abstractmethod
  def import_package(self) -> ModuleType:
    """Imports the program's package, which is imported nowhere else.

    Raises:
      ValueError: if it is not installed (`MissingExtra`), or if it cannot be used as the fields say.
    """

  @abc.abstractmethod
  def open(self, run: LoggedRun) -> Writer:
    """Starts to write the metrics of a run, or continues them."""
