"""The syntax of specs: a whitelisted walk over Python's syntax tree."""

import ast
import dataclasses
import operator
from collections.abc import Mapping
from typing import Any


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
  return parse_call(parse_expression(text), text)


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
    return [parse_call(node, text).name]

  return walk(parse_expression(text))


def parse_expression(text: str) -> ast.expr:
  """Parses a spec, which may combine several; raises SpecError for what is no expression of Python."""
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


def parse_call(node: ast.expr, text: str) -> Call:
  """The call of a node of the spec `text`; raises SpecError for another node."""
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
