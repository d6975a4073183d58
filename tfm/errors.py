"""Refusals: a condition with its sentence, and the name that was probably meant."""

import difflib


def require(condition: bool, sentence: str) -> None:
  """Raises ValueError with the sentence unless the condition holds."""
  if not condition:
    raise ValueError(sentence)


def suggest(name: str, known) -> str:
  """`known: a, b, c; did you mean 'b'?`"""
  known = list(known)
  near = difflib.get_close_matches(name, known, n=1)
  listed = f'known: {", ".join(known) or "none"}'
  return f'{listed}; did you mean {near[0]!r}?' if near else listed
