"""The slot of export formats: a run's model to files that other programs read."""

import abc
import dataclasses
import pathlib
from typing import ClassVar

from tfm.runs.load import Run


@dataclasses.dataclass(frozen=True)
class Format(abc.ABC):
  """How a model is written; the fields of a subclass are the literals of its spec.

  Attributes:
    supports_processes: whether several processes can write it together.
    has_families: whether it is that of a published family, which the field `family` names.
  """

  supports_processes: ClassVar[bool] = False
  has_families: ClassVar[bool] = False

  @abc.abstractmethod
  def write(self, run: Run, workdir: str, folder: pathlib.Path) -> str:
    """Writes the model of a run to a folder, and returns a sentence that lists what was written.

    Args:
      workdir: of the run, for messages.

    Raises:
      ValueError: for a model that the format cannot hold.
    """
