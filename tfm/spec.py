"""Spec strings: `name(literal, key=literal)` selects the variant in the file `name.py` of a slot's folder.

The command line, the log, the config diff and the report all use these strings. A whitelisted walk over
Python's syntax tree parses them, never `eval`. It accepts a call, a bare name, literals, and, where the slot
allows it, the operators `&`, `|` and `~` between specs.

  parse('rope(theta=500)')                        -> Call('rope', (), {'theta': 500})
  build('causal & window(8)', masks, Mask)        -> And(Causal(), Window(8))
  factory('rope', positions, Position, …)         -> partial(Rope, …), which a parent linen module calls
  build_from_table('wsd(decay=0.2)', SCHEDULES)   -> SCHEDULES['wsd'](decay=0.2), for slots that are a table
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import math
import operator
import pkgutil
import types
import typing
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Annotated, Any, Callable, Mapping

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Interval, Le, Lt

from tfm import variant_folders
from tfm.errors import MissingExtra, parsing, suggest


# Types of arguments with their ranges; every float must be finite besides.
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

OPERATORS = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.Invert: operator.invert}


class SpecError(ValueError):
  """A spec string that cannot be parsed or built; the message names value and remedy."""


@dataclasses.dataclass(frozen=True)
class Call:
  """A parsed `name(args, key=value)`."""

  name: str
  args: tuple
  kwargs: Mapping[str, Any]

  def __str__(self):
    """The spec; `parse` of it is this call."""
    arguments = [*map(repr, self.args), *(f'{name}={value!r}' for name, value in self.kwargs.items())]
    return f'{self.name}({", ".join(arguments)})' if arguments else self.name


def parse(text: str) -> Call:
  """Parses one `name` or `name(literal, key=literal)`.

  Raises:
    SpecError: if the text is anything else.
  """
  return _parse_call(_parse_expression(text), text)


def list_names(text: str) -> list[str]:
  """The names of the variants in a spec, which may combine several with `&`, `|` and `~`.

  Raises:
    SpecError: if the text is no spec.
  """

  def walk(node):
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
      return walk(node.left) + walk(node.right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
      return walk(node.operand)
    return [_parse_call(node, text).name]

  return walk(_parse_expression(text))


def build(text: str, package: ModuleType, base: type, **context) -> Any:
  """Builds the object of a spec: an instance of the class derived from `base` in the file that it names.

  Args:
    text: the spec; `&`, `|` and `~` between specs apply the operators of the built objects.
    package: the slot's folder, such as `tfm.masks`.
    base: the slot's protocol class.
    **context: fields that the caller sets (the head width, the length, …), passed to the classes that
      declare them. A spec cannot set them.

  Raises:
    SpecError: for an unknown name or argument; the message lists the known ones and the nearest match.
  """

  def walk(node):
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
      return combine(node.op, walk(node.left), walk(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
      return combine(node.op, walk(node.operand))
    call = _parse_call(node, text)
    return _call_with_spec_error(
      bind(call, find_variant(call.name, package, base, text), text, context), text
    )

  def combine(op, *operands):
    try:
      return OPERATORS[type(op)](*operands)
    except TypeError:
      raise SpecError(f'{text!r} combines specs with an operator, which only masks allow') from None

  return walk(_parse_expression(text))


def factory(text: str, package: ModuleType, base: type, **context) -> functools.partial:
  """Binds the fields of one linen module class; a parent module calls the result to create the submodule.

  The arguments are those of `build`. The module's `validate()` validates the settings at once.
  """
  call = parse(text)
  make_module = bind(call, find_variant(call.name, package, base, text), text, context)
  _call_with_spec_error(lambda: make_module().validate(), text)
  return make_module


def bind_from_table(text: str, table: Mapping[str, Callable], **context) -> functools.partial:
  """Binds the arguments of a spec to the entry of `table` that it names.

  Small slots, whose variants are a few lines each, are such tables: name → callable.
  """
  if isinstance(node := _parse_expression(text), ast.Constant):
    alternatives = [
      f'{name}({text})' for name, maker in table.items() if _accepts_one_value(maker, node.value)
    ]
    remedy = f'use {" or ".join(alternatives)}' if alternatives else suggest(text, table)
    raise SpecError(f'{text!r} has no name; {remedy}')
  call = parse(text)
  _require_entry(call, table, text)
  return bind(call, table[call.name], text, context)


def require_entry(text: str, names: Collection[str]) -> None:
  """Raises SpecError for a spec of a table that does not have these names; a literal alone passes."""
  if not isinstance(_parse_expression(text), ast.Constant):
    _require_entry(parse(text), names, text)


def _require_entry(call: Call, names: Collection[str], text: str) -> None:
  if call.name not in names:
    raise SpecError(f'{text!r} names {call.name!r}, which does not exist; {suggest(call.name, names)}')


def build_from_table(text: str, table: Mapping[str, Callable], **context) -> Any:
  """Binds a spec as `bind_from_table` does, and calls the result."""
  return _call_with_spec_error(bind_from_table(text, table, **context), text)


def variant_names(package: ModuleType) -> tuple[str, ...]:
  """Lists the variants of a slot: its files' names, except `protocol` and names that begin with `_`; those of
  folders outside the package too (`tfm.variant_folders`).
  """
  return tuple(sorted(variant_files(package)))


def variant_files(package: ModuleType) -> dict[str, str]:
  """Name → file of the variants of a slot; imports none of them."""
  return {
    module.name: f'{module.module_finder.path}/{module.name}.py'
    for module in pkgutil.iter_modules(variant_folders.extend_path(package))
    if module.name != 'protocol' and not module.name.startswith('_')
  }


def find_variant(name: str, package: ModuleType, base: type, text: str | None = None) -> type:
  """Imports the one public class derived from `base` in the file `name.py` of `package`."""
  file = _find_file(name, package, text)
  try:
    with parsing(file, f'a variant of {_slot_name(package)}'):
      module = importlib.import_module(f'{package.__name__}.{name}')
  except MissingExtra as error:
    raise SpecError(f'{text or name!r}: {error}') from error
  classes = [
    c
    for c in vars(module).values()
    if inspect.isclass(c)
    and issubclass(c, base)
    and c.__module__ == module.__name__
    and not c.__name__.startswith('_')
  ]
  if len(classes) != 1:
    raise SpecError(
      f'{module.__name__} must define one public {base.__name__}, found {[c.__name__ for c in classes]}'
    )
  variant_folders.record(module)
  return classes[0]


def require_variants(text: str, package: ModuleType) -> None:
  """Raises SpecError for a spec with a name that the slot does not have; imports no variant."""
  for name in list_names(text):
    _find_file(name, package, text)


def _find_file(name: str, package: ModuleType, text: str | None) -> str:
  files = variant_files(package)
  if name not in files:
    remedy = suggest(name, sorted(files))
    if not remedy.endswith('?') and not variant_folders.folders():  # no typo
      remedy += '; one of your own needs --variants=FOLDER'
    raise SpecError(f'{text or name!r} names {name!r}, which {_slot_name(package)} does not have; {remedy}')
  return files[name]


def _slot_name(package: ModuleType) -> str:
  return package.__name__.rpartition('.')[2]


def bind(call: Call, maker: Callable, text: str, context: Mapping[str, Any] = {}) -> functools.partial:
  """Binds a spec's arguments, and the fields of `context` that `maker` declares, without calling it.

  Raises:
    SpecError: for an unknown, missing, repeated, surplus or wrongly typed argument.
  """
  parameters = inspect.signature(maker).parameters
  others = next((p for p in parameters.values() if p.kind is p.VAR_KEYWORD), None)  # `**weights`: any name
  # Linen adds `parent` and `name` to every module; the caller sets the fields of the context.
  shown = [name for name in parameters if name not in ('parent', 'name') and name not in context]
  usage = f'{call.name} takes {format_signature(maker, shown)}'
  settable = [name for name in shown if parameters[name] is not others]
  for name in call.kwargs:
    if name not in settable and (others is None or name in parameters):
      raise SpecError(f'{text!r} passes {name!r}; {usage}; {suggest(name, settable)}')
  if len(call.args) > len(settable):
    raise SpecError(f'{text!r} passes {len(call.args)} positional arguments; {usage}')
  arguments = dict(zip(settable, call.args))
  for name in arguments.keys() & call.kwargs.keys():
    raise SpecError(f'{text!r} sets {name!r} twice; {usage}')
  arguments |= call.kwargs
  for name in settable:
    if parameters[name].default is inspect.Parameter.empty and name not in arguments:
      raise SpecError(f'{text!r} leaves out {name!r}; {usage}')
  for name, value in arguments.items():
    if reason := unsuitable_reason(value, parameters.get(name, others).annotation):
      raise SpecError(f'{text!r}: {name}={shorten(value)} {reason}; {usage}')
  declared = {name: value for name, value in context.items() if name in parameters}
  return functools.partial(maker, **arguments, **declared)


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


def format_signature(maker: Callable, settable: list[str]) -> str:
  """Formats the arguments that a spec may set, such as `(left [≥ 1], right=0)`, for messages and `--help`."""
  parameters = inspect.signature(maker).parameters

  def format_argument(name):
    parameter = parameters[name]
    default, limits = parameter.default, format_range(parameter.annotation)
    text = str(parameter).partition(':')[0] if default is parameter.empty else f'{name}={default!r}'
    return f'{text} [{limits}]' if limits else text

  return f'({", ".join(map(format_argument, settable))})'


def _call_with_spec_error(make: Callable, text: str) -> Any:
  """Calls `make` and raises its TypeError or ValueError as a SpecError that names the spec."""
  try:
    return make()
  except (TypeError, ValueError) as error:
    raise SpecError(f'{text!r}: {error}') from error


def _accepts_one_value(maker: Callable, value: Any) -> bool:
  """Whether `maker` has exactly one required parameter and `value` has its type."""
  required = [p for p in inspect.signature(maker).parameters.values() if p.default is inspect.Parameter.empty]
  return len(required) == 1 and matches_type(value, required[0].annotation)


def _parse_expression(text: str) -> ast.expr:
  if not isinstance(text, str) or not text.strip():
    raise SpecError(f'a spec is a string such as "name" or "name(key=1)", not {text!r}')
  try:
    return ast.parse(text.strip(), mode='eval').body
  # The last three: a null byte, or nesting too deep for the parser.
  except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
    raise SpecError(
      f'{text[:80]!r} is not a spec ({getattr(error, "msg", error)}); '
      'write "name" or "name(literal, key=literal)", with strings in quotes'
    ) from None


def _parse_call(node: ast.expr, text: str) -> Call:
  if isinstance(node, ast.Name):
    return Call(node.id, (), {})
  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
    if any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
      raise SpecError(f'{text!r} unpacks an argument; a spec takes literals only')
    keys = [k.arg for k in node.keywords]
    for key in keys:
      if keys.count(key) > 1:  # the parser accepts it
        raise SpecError(f'{text!r} sets {key!r} twice; set it once')
    return Call(
      node.func.id,
      tuple(_parse_literal(a, text) for a in node.args),
      {k.arg: _parse_literal(k.value, text) for k in node.keywords},
    )
  raise SpecError(f'{text!r} holds {ast.unparse(node)!r}; a spec is "name" or "name(literal, key=literal)"')


def _parse_literal(node: ast.expr, text: str) -> Any:
  try:
    return ast.literal_eval(node)
  # TypeError: an unhashable key of a literal dict.
  except (ValueError, TypeError, MemoryError, RecursionError):
    words = ast.get_source_segment(text.strip(), node)
    has_names = any(isinstance(part, ast.Name) for part in ast.walk(node))
    hint = f'; for a string write {words!r} in quotes' if has_names else ''
    raise SpecError(f'{text!r} holds the argument {words!r}, which is not a literal{hint}') from None
