"""What a measure is: a trained run → numbers."""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

from tfm.run import Run
from tfm.shapes import PyTree


@dataclasses.dataclass(frozen=True)
class Value:
  """One number.

  Attributes:
    metric: what it is of; x: where, such as at which length; None for a plain number.
    value: None where there is none, and `why` says in a sentence what is in the way.
  """

  metric: str
  value: float | None
  x: float | None = None
  why: str = ''


@dataclasses.dataclass(frozen=True)
class Measure(abc.ABC):
  """Numbers of trained runs; the fields of a subclass are the literals of its spec.

  Attributes:
    costs: the metrics that quality is bought with; a report draws it against them.
  """

  costs: ClassVar[tuple[str, ...]] = ()

  @abc.abstractmethod
  def prepare(self, run: Run) -> Callable[[PyTree], list[Value]]:
    """parameters → numbers, for any seed of an arm of which `run` is one: what is compiled is compiled once.

    Raises:
      ValueError: if the run cannot be asked.
    """
