"""What a measure is: a trained run → numbers."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

from ml_collections import ConfigDict

from tfm.models.trunk import Trunk
from tfm.runs.load import Run
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

  def check(self, config: ConfigDict, model: Trunk) -> None:
    """Whether runs of a config, which have such a model, can be asked.

    Raises:
      ValueError: if they cannot.
    """

  def plain(self, validation: Sequence[str]) -> Sequence[str] | None:
    """The metrics without x, of a run whose validation has those given; None: that is not known before."""
    return None

  @abc.abstractmethod
  def prepare(self, run: Run) -> Callable[[PyTree], list[Value]]:
    """parameters → numbers, for any seed of an arm of which `run` is one: what is compiled is compiled once.

    Raises:
      ValueError: if the run cannot be asked.
    """
