"""Reversing."""

import dataclasses

from tfm.data import letter_tasks


@dataclasses.dataclass(frozen=True)
class Reverse(letter_tasks.LetterTask):
  """badc=cdab (Grefenstette et al. 2015, §4.1)."""

  def answer(self, x):
    return x[::-1]
