"""The interface of a measure: trained run → numbers."""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import ClassVar

import tfm.studies.measures
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.models.trunk import Trunk
from tfm.runs.load import Run
from tfm.shapes import PyTree


@dataclasses.dataclass(frozen=True)
class Value:
  """One number.

  Attributes:
    metric: its name; x: the abscissa, such as a length; None for a scalar.
    value: None if it could not be computed; `why` then gives the reason in a sentence.
  """

  metric: str
  value: float | None
  x: float | None = None
  why: str = ''


@dataclasses.dataclass(frozen=True)
class Measure(abc.ABC):
  """Computes numbers of trained runs; the fields of a subclass are the arguments of its spec.

  Attributes:
    cost_metrics: the metrics that are costs; a report plots quality against them.
  """

  cost_metrics: ClassVar[tuple[str, ...]] = ()

  def validate(self, experiment: Experiment, model: Trunk) -> None:
    """Checks that the measure supports runs of an experiment with such a model.

    Raises:
      ValueError: if it does not.
    """

  def metric_names(self, validation: Sequence[str]) -> Sequence[str] | None:
    """The scalar metrics of a run whose validation computes the given ones; None if not known before
    training.
    """
    return None

  @abc.abstractmethod
  def prepare(self, run: Run) -> Callable[[PyTree], list[Value]]:
    """Returns a function parameters → numbers that serves all seeds of the arm of `run`; it compiles once.

    Raises:
      ValueError: if the measure does not support the run.
    """

  def measure_run(
    self, measure: Callable[[PyTree], list[Value]], run: Run, run_dir: pathlib.Path
  ) -> list[Value]:
    """All numbers of the run in `run_dir`, those of its last parameters, by the function that `prepare` has
    returned for its arm.
    """
    return measure(run.params)


def build_measure(text: str) -> Measure:
  """The measure that a spec names.

  Raises:
    ValueError: for an unknown measure or invalid arguments.
  """
  try:
    return spec.build(text, tfm.studies.measures, Measure)
  except ValueError as error:
    raise ValueError(f'measures={error}') from error
