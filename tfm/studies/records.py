"""The types of what the JSON files of a study hold, and their check when a file is read."""

import typing
from typing import Any, TypedDict

from tfm.errors import require
from tfm.spec import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, shorten, unsuitable_reason


class Machine(TypedDict):
  """Where and when an arm trained."""

  machine: str
  versions: str
  date: str


class Outcome(TypedDict, total=False):
  """Learning rate → the metric that it reached, the steps until its goal, or why it diverged."""

  reached: dict[float, float]
  steps: dict[float, float]
  diverged: dict[float, str]


class Rates(Outcome, total=False):
  """The outcome of the rates in full, and of each rung by its steps.

  runs: at each rate (1 if missing); beyond: the `rates_beyond` of the study (0 if missing).
  """

  runs: PositiveInt
  beyond: NonNegativeInt
  rungs: dict[int, Outcome]


class Named(TypedDict):
  """What has a name."""

  name: str


class ArmRecord(Named, total=False):
  """arm.json; diverged: seed → why; unmeasured: spec of a measure → why; together: arms of one ensemble."""

  error: str | None
  unmeasured: dict[str, str]
  made: list[Machine]
  diverged: dict[int, str]
  seconds: NonNegativeFloat
  rate: PositiveFloat
  rates: Rates
  together: list[str]


class StepTime(TypedDict):
  """time.json: seconds of a step of an arm and of the base, and their configs."""

  seconds: PositiveFloat
  base_seconds: PositiveFloat
  machine: str
  config: dict[str, Any]
  base: dict[str, Any]


class MeasuredValue(TypedDict):
  """A `Value` of a measure."""

  metric: str
  value: float | None
  x: float | None
  why: str


Measured = dict[str, list[MeasuredValue]]  # measured.json: spec of a measure → its values


NUMBERS = {int: 'a whole number', float: 'a number'}


def check_type(value: Any, kind: Any, place: str = '') -> None:
  """Checks that a value of a JSON file has a type.

  Args:
    kind: a type that this file defines, or one that they consist of. Keys are texts in JSON: those of
      `dict[int, …]` are texts of whole numbers. Entries that a class does not name may have any value. A
      float may be infinite or undefined, a number with a range may not.
    place: the path of the value in its file, for messages.

  Raises:
    ValueError: naming the first entry that is of another type.
  """
  members, prefix = typing.get_args(kind), f'{place}.' if place else ''
  if typing.is_typeddict(kind) or typing.get_origin(kind) is dict:
    require(isinstance(value, dict), f'{place or "it"} is a {type(value).__name__}, not an object')
  if typing.is_typeddict(kind):
    for name, entry_kind in typing.get_type_hints(kind, include_extras=True).items():
      require(name in value or name not in kind.__required_keys__, f'{prefix}{name} is missing')
      if name in value:
        check_type(value[name], entry_kind, f'{prefix}{name}')
  elif typing.get_origin(kind) is dict:
    for key, entry in value.items():
      require(
        _is_text_of(key, members[0]), f'the name {prefix}{key} must be the text of {NUMBERS.get(members[0])}'
      )
      check_type(entry, members[1], f'{prefix}{key}')
  elif typing.get_origin(kind) is list:
    require(isinstance(value, list), f'{place} is a {type(value).__name__}, not a list')
    for i, entry in enumerate(value):
      check_type(entry, members[0], f'{prefix}{i}')
  elif not (isinstance(value, float) and kind in (float, float | None)):
    reason = unsuitable_reason(value, kind)
    require(not reason, f'{place}={shorten(value)} {reason}')


def _is_text_of(text: str, kind: type) -> bool:
  try:
    return kind(text) is not None
  except ValueError:
    return False
