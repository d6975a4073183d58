"""What every field of a config means: the comments beside the fields of `tfm/config/schema.py`.

They stand there once, where whoever adds a field reads and writes them; `--help` and the reference show them.
"""

import ast
import functools
import inspect
import io
import tokenize
from collections.abc import Iterator, Mapping

from tfm.config import schema


@functools.cache
def field_comments() -> Mapping[str, str]:
  """Path → comment of every field and section that has one.

  The comment stands at the end of the field's line, or on lines of its own right above it. A comment of a
  section ends the line that opens it.
  """
  source = inspect.getsource(schema)
  trailing, above = _comments(source)
  return dict(_walk(_fields_call(source), '', trailing, above))


def describe_field(path: str) -> str:
  """The comment of a field, else that of the nearest section around it that has one; else ''."""
  comments = field_comments()
  while path and path not in comments:
    path = path.rpartition('.')[0]
  return comments.get(path, '')


def _comments(source: str) -> tuple[dict[int, str], dict[int, str]]:
  """Line number → the comment that ends that line, and the comment lines that end right above it."""
  trailing, above, pending = {}, {}, []
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    line = token.start[0]
    if token.type == tokenize.COMMENT:
      text = token.string.lstrip('# ').rstrip()
      if token.line[: token.start[1]].strip():
        trailing[line] = text
      else:
        pending.append(text)
        above[line + 1] = ' '.join(pending)
    elif token.type not in (tokenize.NL, tokenize.NEWLINE):
      pending = []
  return trailing, above


def _fields_call(source: str) -> ast.Call:
  """The call of `dict` that `_fields` returns."""
  (function,) = (
    node
    for node in ast.parse(source).body
    if isinstance(node, ast.FunctionDef) and node.name == schema._fields.__name__
  )
  return function.body[-1].value


def _walk(
  fields: ast.Call, prefix: str, trailing: Mapping[int, str], above: Mapping[int, str]
) -> Iterator[tuple[str, str]]:
  for field in fields.keywords:
    path, value = f'{prefix}{field.arg}', field.value
    is_section = isinstance(value, ast.Call) and getattr(value.func, 'id', '') == 'dict' and value.keywords
    last = field.lineno if is_section else value.end_lineno
    if comment := above.get(field.lineno) or trailing.get(last):
      yield path, comment
    if is_section:
      yield from _walk(value, f'{path}.', trailing, above)
