"""Objects of specs: arguments bound to the class or the callable that a spec names, and called."""

import ast
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from tfm.errors import suggest
from tfm.spec.ranges import format_range, matches_type, shorten, unsuitable_reason
from tfm.spec.syntax import OPERATORS, Call, SpecError, parse, parse_call, parse_expression
from tfm.spec.variants import find_variant


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
    call = parse_call(node, text)
    return _call_with_spec_error(
      bind(call, find_variant(call.name, package, base, text), text, context), text
    )

  def combine(op, *operands):
    try:
      return OPERATORS[type(op)](*operands)
    except TypeError:
      raise SpecError(f'{text!r} combines specs with an operator, which only masks allow') from None

  return walk(parse_expression(text))


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
  if isinstance(node := parse_expression(text), ast.Constant):
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
  if not isinstance(parse_expression(text), ast.Constant):
    _require_entry(parse(text), names, text)


def _require_entry(call: Call, names: Collection[str], text: str) -> None:
  if call.name not in names:
    raise SpecError(f'{text!r} names {call.name!r}, which does not exist; {suggest(call.name, names)}')


def build_from_table(text: str, table: Mapping[str, Callable], **context) -> Any:
  """Binds a spec as `bind_from_table` does, and calls the result."""
  return _call_with_spec_error(bind_from_table(text, table, **context), text)


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
