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
import importlib.util
import inspect
import operator
import pathlib
import pkgutil
import types
import typing
from types import ModuleType
from typing import Any, Callable, Mapping

from tfm.errors import suggest


OPERATORS = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.Invert: operator.invert}


class SpecError(ValueError):
  """A spec string that cannot be parsed or built; the message names value and remedy."""


@dataclasses.dataclass(frozen=True)
class Call:
  """A parsed `name(args, key=value)`."""

  name: str
  args: tuple
  kwargs: Mapping[str, Any]


def parse(text: str) -> Call:
  """Parses one `name` or `name(literal, key=literal)`.

  Raises:
    SpecError: if the text is anything else.
  """
  return _parse_call(_parse_expression(text), text)


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
  if call.name not in table:
    raise SpecError(f'{text!r} names {call.name!r}, which does not exist; {suggest(call.name, table)}')
  return bind(call, table[call.name], text, context)


def build_from_table(text: str, table: Mapping[str, Callable], **context) -> Any:
  """Binds a spec as `bind_from_table` does, and calls the result."""
  return _call_with_spec_error(bind_from_table(text, table, **context), text)


def variant_names(package: ModuleType) -> tuple[str, ...]:
  """Lists the variants of a slot: its files' names, except `protocol` and names that begin with `_`."""
  modules = (m.name for m in pkgutil.iter_modules(package.__path__))
  return tuple(sorted(name for name in modules if name != 'protocol' and not name.startswith('_')))


def find_variant(name: str, package: ModuleType, base: type, text: str | None = None) -> type:
  """Imports the one public class derived from `base` in the file `name.py` of `package`."""
  slot = package.__name__.rpartition('.')[2]
  if name not in variant_names(package):
    raise SpecError(
      f'{text or name!r} names {name!r}, which {slot} does not have; {suggest(name, variant_names(package))}'
    )
  module = importlib.import_module(f'{package.__name__}.{name}')
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
  return classes[0]


def bind(call: Call, maker: Callable, text: str, context: Mapping[str, Any] = {}) -> functools.partial:
  """Binds a spec's arguments, and the fields of `context` that `maker` declares, without calling it.

  Raises:
    SpecError: for an unknown, missing, repeated, surplus or wrongly typed argument.
  """
  parameters = inspect.signature(maker).parameters
  # Linen adds `parent` and `name` to every module; the caller sets the fields of the context.
  settable = [name for name in parameters if name not in ('parent', 'name') and name not in context]
  usage = f'{call.name} takes {format_signature(maker, settable)}'
  for name in call.kwargs:
    if name not in settable:
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
    if not matches_type(value, parameters[name].annotation):
      raise SpecError(
        f'{text!r} passes {name}={value!r}, which must be of type '
        f'{inspect.formatannotation(parameters[name].annotation)}; {usage}'
      )
  declared = {name: value for name, value in context.items() if name in parameters}
  return functools.partial(maker, **arguments, **declared)


def matches_type(value: Any, annotation: Any) -> bool:
  """Whether a literal has the annotated type: None, bool, int, float, str or a union of them.

  An int is accepted as a float; a bool is not accepted as a number. Other annotations accept every value:
  the class itself must check them.
  """
  kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
  simple = {bool: bool, int: int, float: (int, float), str: str, type(None): type(None)}
  if any(kind not in simple for kind in kinds):
    return True
  if isinstance(value, bool):
    return bool in kinds
  return any(isinstance(value, simple[kind]) for kind in kinds)


def format_signature(maker: Callable, settable: list[str]) -> str:
  """Formats the arguments that a spec may set, such as `(left, right=0)`, for error messages and `--help`."""
  parameters = inspect.signature(maker).parameters
  texts = [
    n if parameters[n].default is inspect.Parameter.empty else f'{n}={parameters[n].default!r}'
    for n in settable
  ]
  return f'({", ".join(texts)})'


def load_function(path: str, function: str, flag: str = '') -> Callable:
  """Executes a Python file and returns the function of one argument that it defines.

  Args:
    path: the file.
    function: the function's name.
    flag: the command-line flag that names the file, such as `--config=`, as a prefix of error messages.

  Raises:
    ValueError: if the file does not exist or does not define the function.
  """
  if not pathlib.Path(path).is_file():
    raise ValueError(f'{flag}{path} is no file; use a Python file that defines {function}(arg)')
  module_spec = importlib.util.spec_from_file_location(f'tfm_{function}', path)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  if not hasattr(module, function):
    raise ValueError(f'{flag}{path} defines no {function}(arg)')
  return getattr(module, function)


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
      'write "name" or "name(literal, key=literal)"'
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
    hint = f'; for a string write {node.id!r} in quotes' if isinstance(node, ast.Name) else ''
    raise SpecError(
      f'{text!r} holds the argument {ast.unparse(node)!r}, which is not a literal{hint}'
    ) from None
