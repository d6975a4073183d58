"""Spec strings: `name(literal, key=literal)` names the file `name.py` of a slot's folder.

The command line, the log, the config diff and the report all speak these strings. They are read by
a whitelisted walk over Python's syntax tree, never by `eval`: a call, a bare name, literals, and,
where the slot allows it, the operators `&`, `|` and `~` between specs.

  parse('rope(theta=500)')                   -> Call('rope', (), {'theta': 500})
  build('causal & window(8)', masks, Mask)   -> And(Causal(), Window(8))
  factory('rope', positions, Position, …)    -> partial(Rope, …): linen modules travel as factories
  choose('wsd(decay=0.2)', SCHEDULES)        -> SCHEDULES['wsd'](decay=0.2): small slots are tables
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
  """A spec string that cannot be read or built; one sentence saying what would do."""


@dataclasses.dataclass(frozen=True)
class Call:
  """A parsed `name(args, key=value)`."""

  name: str
  args: tuple
  kwargs: Mapping[str, Any]


def parse(text: str) -> Call:
  """Reads one `name` or `name(literal, key=literal)`.

  Raises:
    SpecError: if the text is anything else.
  """
  return _call(_tree(text), text)


def build(text: str, package: ModuleType, base: type, **context) -> Any:
  """Builds the object that a spec names: the class derived from `base` in `package`'s file.

  Args:
    text: the spec; `&`, `|` and `~` between specs apply the objects' own operators.
    package: the slot's folder, such as `tfm.masks`.
    base: the slot's protocol class.
    **context: fields that the surroundings know (the head width, the length, …), passed to the
      classes that declare them and that the spec does not set.

  Raises:
    SpecError: for an unknown name or argument, with the known ones and the nearest match.
  """

  def walk(node):
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
      return combine(node.op, walk(node.left), walk(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
      return combine(node.op, walk(node.operand))
    call = _call(node, text)
    return _called(bind(call, find(call.name, package, base, text), text, context), text)

  def combine(op, *operands):
    try:
      return OPERATORS[type(op)](*operands)
    except TypeError:
      raise SpecError(f'{text!r} combines specs with an operator, which only masks allow') from None

  return walk(_tree(text))


def factory(text: str, package: ModuleType, base: type, **context) -> functools.partial:
  """As `build`, but for one linen module: its class with the fields bound, to be called in a parent.

  The settings are checked at once by the module's `check()`.
  """
  call = parse(text)
  made = bind(call, find(call.name, package, base, text), text, context)
  _called(lambda: made().check(), text)
  return made


def pick(text: str, table: Mapping[str, Callable], **context) -> functools.partial:
  """The entry of `table` that a spec names, arguments bound: for variants of a few lines each."""
  if isinstance(node := _tree(text), ast.Constant):
    takers = [f'{name}({text})' for name, maker in table.items() if _takes(maker, node.value)]
    raise SpecError(
      f'{text!r} names nothing; ' + (f'{" or ".join(takers)} would do' if takers else suggest(text, table))
    )
  call = parse(text)
  if call.name not in table:
    raise SpecError(f'{text!r} names {call.name!r}, which is not there; {suggest(call.name, table)}')
  return bind(call, table[call.name], text, context)


def choose(text: str, table: Mapping[str, Callable], **context) -> Any:
  """As `pick`, and called."""
  return _called(pick(text, table, **context), text)


def names(package: ModuleType) -> tuple[str, ...]:
  """The variants of a slot: the names of its files, but for `protocol` and those that begin with `_`."""
  found = (m.name for m in pkgutil.iter_modules(package.__path__))
  return tuple(sorted(name for name in found if name != 'protocol' and not name.startswith('_')))


def find(name: str, package: ModuleType, base: type, text: str | None = None) -> type:
  """The one public class derived from `base` in the file `name.py` of `package`."""
  slot = package.__name__.rpartition('.')[2]
  if name not in names(package):
    raise SpecError(
      f'{text or name!r} names {name!r}, which {slot} does not have; {suggest(name, names(package))}'
    )
  module = importlib.import_module(f'{package.__name__}.{name}')
  found = [
    c
    for c in vars(module).values()
    if inspect.isclass(c)
    and issubclass(c, base)
    and c.__module__ == module.__name__
    and not c.__name__.startswith('_')
  ]
  if len(found) != 1:
    raise SpecError(
      f'{module.__name__} must define one public {base.__name__}, found {[c.__name__ for c in found]}'
    )
  return found[0]


def bind(call: Call, maker: Callable, text: str, context: Mapping[str, Any] = {}) -> functools.partial:
  """Binds a spec's arguments, and what `maker` declares of `context`, without calling it.

  Raises:
    SpecError: for an argument that is unknown, missing, given twice, one too many or of a wrong type.
  """
  parameters = inspect.signature(maker).parameters
  # Linen adds `parent` and `name` to every module; context fields are the surroundings' to set.
  settable = [name for name in parameters if name not in ('parent', 'name') and name not in context]
  takes = f'{call.name} takes {signature(maker, settable)}'
  for name in call.kwargs:
    if name not in settable:
      raise SpecError(f'{text!r} passes {name!r}; {takes}; {suggest(name, settable)}')
  if len(call.args) > len(settable):
    raise SpecError(f'{text!r} passes {len(call.args)} positional arguments; {takes}')
  given = dict(zip(settable, call.args))
  for name in given.keys() & call.kwargs.keys():
    raise SpecError(f'{text!r} sets {name!r} twice; {takes}')
  given |= call.kwargs
  for name in settable:
    if parameters[name].default is inspect.Parameter.empty and name not in given:
      raise SpecError(f'{text!r} leaves out {name!r}; {takes}')
  for name, value in given.items():
    if not fits(value, parameters[name].annotation):
      raise SpecError(
        f'{text!r} passes {name}={value!r}, which must be of type '
        f'{inspect.formatannotation(parameters[name].annotation)}; {takes}'
      )
  known = {name: value for name, value in context.items() if name in parameters}
  return functools.partial(maker, **given, **known)


def fits(value: Any, annotation: Any) -> bool:
  """Whether a literal is of an annotated type: None, bool, int, float, str or a union of them.

  A whole number is a float, True is no number, and what is annotated otherwise is the maker's to check.
  """
  kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
  simple = {bool: bool, int: int, float: (int, float), str: str, type(None): type(None)}
  if any(kind not in simple for kind in kinds):
    return True
  if isinstance(value, bool):
    return bool in kinds
  return any(isinstance(value, simple[kind]) for kind in kinds)


def signature(maker: Callable, settable: list[str]) -> str:
  """`(left, right=0)`: what a spec may say, for error messages and `--help`."""
  parameters = inspect.signature(maker).parameters
  shown = [
    n if parameters[n].default is inspect.Parameter.empty else f'{n}={parameters[n].default!r}'
    for n in settable
  ]
  return f'({", ".join(shown)})'


def defined(path: str, function: str, flag: str = '') -> Callable:
  """A function of one argument that a Python file defines.

  Args:
    flag: that named the file, for the errors.

  Raises:
    ValueError: if there is no such file, or no such function in it.
  """
  if not pathlib.Path(path).is_file():
    raise ValueError(f'{flag}{path} is no file; name a Python file with a {function}(arg)')
  module_spec = importlib.util.spec_from_file_location(f'tfm_{function}', path)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  if not hasattr(module, function):
    raise ValueError(f'{flag}{path} defines no {function}(arg)')
  return getattr(module, function)


def _called(make: Callable, text: str) -> Any:
  try:
    return make()
  except (TypeError, ValueError) as error:
    raise SpecError(f'{text!r}: {error}') from error


def _takes(maker: Callable, value: Any) -> bool:
  """Whether it asks for one value, and this may be it."""
  asked = [p for p in inspect.signature(maker).parameters.values() if p.default is inspect.Parameter.empty]
  return len(asked) == 1 and fits(value, asked[0].annotation)


def _tree(text: str) -> ast.expr:
  if not isinstance(text, str) or not text.strip():
    raise SpecError(f'a spec is a string such as "name" or "name(key=1)", not {text!r}')
  try:
    return ast.parse(text.strip(), mode='eval').body
  # Besides SyntaxError: a null byte, and nesting too deep for the parser.
  except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
    raise SpecError(
      f'{text[:80]!r} is not a spec ({getattr(error, "msg", error)}); '
      'write "name" or "name(literal, key=literal)"'
    ) from None


def _call(node: ast.expr, text: str) -> Call:
  if isinstance(node, ast.Name):
    return Call(node.id, (), {})
  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
    if any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
      raise SpecError(f'{text!r} unpacks an argument; a spec takes literals only')
    keys = [k.arg for k in node.keywords]
    for key in keys:
      if keys.count(key) > 1:  # the parser does not mind
        raise SpecError(f'{text!r} sets {key!r} twice; say it once')
    return Call(
      node.func.id,
      tuple(_literal(a, text) for a in node.args),
      {k.arg: _literal(k.value, text) for k in node.keywords},
    )
  raise SpecError(f'{text!r} holds {ast.unparse(node)!r}; a spec is "name" or "name(literal, key=literal)"')


def _literal(node: ast.expr, text: str) -> Any:
  try:
    return ast.literal_eval(node)
  except (
    ValueError,
    TypeError,
    MemoryError,
    RecursionError,
  ):  # TypeError: an unhashable key of a literal dict
    hint = f'; for a string write {node.id!r} in quotes' if isinstance(node, ast.Name) else ''
    raise SpecError(
      f'{text!r} holds the argument {ast.unparse(node)!r}, which is not a literal{hint}'
    ) from None
