"""Copying."""

import dataclasses

from tfm.data import letters


@dataclasses.dataclass(frozen=True)
class Copy(letters.LetterTask):
  """badc=badc (Graves et al. 2014, §4.1)."""

  def answer(self, x):
    return x
