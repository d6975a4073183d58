"""Reversing."""

import dataclasses

from tfm.data import letters


@dataclasses.dataclass(frozen=True)
class Reverse(letters.LetterTask):
  """badc=cdab (Grefenstette et al. 2015, §4.1)."""

  def answer(self, x):
    return x[::-1]
