"""Types of arguments with their ranges: what does not suit them, and how messages name them."""

import inspect
import math
import operator
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Interval, Le, Lt


# Every float must be finite besides.
MAX_SIZE = 2**24  # no axis of an array is longer: larger sizes are slips of the keyboard
Size = Annotated[int, Interval(ge=1, le=MAX_SIZE)]  # of an axis of an array
SizeOrZero = Annotated[int, Interval(ge=0, le=MAX_SIZE)]
MAX_COUNT = 2**31 - 1  # steps are counted in int32
PositiveInt = Annotated[int, Interval(ge=1, le=MAX_COUNT)]
NonNegativeInt = Annotated[int, Interval(ge=0, le=MAX_COUNT)]
MAX_NUMBER = 1e9
PositiveFloat = Annotated[float, Interval(gt=0, le=MAX_NUMBER)]
NonNegativeFloat = Annotated[float, Interval(ge=0, le=MAX_NUMBER)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
Rate = Annotated[float, Interval(ge=0, lt=1)]  # of dropout, smoothing, moving averages
Epsilon = Annotated[float, Interval(ge=0, le=1)]  # what keeps a denominator above 0
LARGE = MAX_SIZE, MAX_COUNT, MAX_NUMBER  # upper limits that no reader needs to know
BOUNDS = {
  Ge: ('ge', 'at least', '≥'),
  Gt: ('gt', 'above', '>'),
  Le: ('le', 'at most', '≤'),
  Lt: ('lt', 'below', '<'),
}


def matches_type(value: Any, annotation: Any) -> bool:
  """Whether a literal has the annotated type and lies in its range; see `unsuitable_reason`."""
  return not unsuitable_reason(value, annotation)


def unsuitable_reason(value: Any, annotation: Any) -> str:
  """Why a literal does not suit an annotation, such as 'must be at least 1'; '' if it does.

  Known are None, bool, int, float, str, tuples and unions of these, and their ranges (`Annotated`). An int is
  accepted as a float; a bool is not accepted as a number, nor an infinite or undefined number. Other
  annotations accept every value: the class itself must check them.
  """
  alternatives = _union_members(annotation)
  reasons = [_range_reason(value, kind) for kind in alternatives if _has_type(value, kind)]
  if not reasons:
    return f'must be of type {format_type(annotation)}'
  return '' if '' in reasons else reasons[0]


def _union_members(annotation: Any) -> tuple:
  is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
  return typing.get_args(annotation) if is_union else (annotation,)


def _bare_type(kind: Any) -> Any:
  """An annotation without its range."""
  return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _bounds(kind: Any) -> Iterator[BaseMetadata]:
  """The bounds of an `Annotated` number."""
  for bound in getattr(kind, '__metadata__', ()):
    yield from bound if isinstance(bound, GroupedMetadata) else (bound,)


def _has_type(value: Any, kind: Any) -> bool:
  kind = _bare_type(kind)
  if typing.get_origin(kind) is tuple:
    return isinstance(value, (tuple, list))
  simple = {bool: bool, int: int, float: (int, float), str: str, type(None): type(None)}
  if kind not in simple:
    return True
  return isinstance(value, simple[kind]) and (kind is bool or not isinstance(value, bool))


def _range_reason(value: Any, kind: Any) -> str:
  """Why a value of the right type is out of range; '' if it is not."""
  if typing.get_origin(kind) is tuple:
    members = typing.get_args(kind)
    if members[-1:] == (Ellipsis,):
      members = members[:1] * len(value)
    if len(members) != len(value):
      return f'must have {len(members)} entries'
    reasons = map(unsuitable_reason, value, members)
    return next((f'has an entry that {reason}' for reason in reasons if reason), '')
  if isinstance(value, float) and not math.isfinite(value):
    return 'must be finite'
  bounds = [
    (name, words, getattr(bound, name)) for bound in _bounds(kind) for name, words, _ in [BOUNDS[type(bound)]]
  ]
  violated = [limit for name, _, limit in bounds if not getattr(operator, name)(value, limit)]
  if not violated:
    return ''
  stated = [f'{words} {limit:,}' for _, words, limit in bounds if limit not in LARGE or limit in violated]
  return f'must be {" and ".join(stated)}'


def format_type(annotation: Any) -> str:
  """Formats an annotation without ranges, such as `int | None`, for messages."""

  def format_member(kind):
    if typing.get_origin(kind) is tuple:
      return f'tuple[{", ".join(map(format_member, typing.get_args(kind)))}]'
    names = {type(None): 'None', Ellipsis: '...'}
    return names.get(kind) or inspect.formatannotation(_bare_type(kind))

  return ' | '.join(map(format_member, _union_members(annotation)))


def format_range(annotation: Any) -> str:
  """Formats the range of an annotation, such as `> 0, ≤ 1`; '' without one. `LARGE` limits are left out."""
  bounds = [
    (sign, getattr(bound, name))
    for kind in _union_members(annotation)
    for bound in _bounds(kind)
    for name, _, sign in [BOUNDS[type(bound)]]
  ]
  return ', '.join(f'{sign} {limit}' for sign, limit in bounds if limit not in LARGE)


def shorten(value: Any, characters: int = 80) -> str:
  """The `repr` of a value, cut in its middle beyond so many characters."""
  text = repr(value)
  half = characters // 2
  return text if len(text) <= characters else f'{text[:half]}…{text[-half:]} ({len(text):,} characters)'
