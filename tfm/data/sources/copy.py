"""Copying."""

import dataclasses

from tfm.data import letter_tasks


@dataclasses.dataclass(frozen=True)
class Copy(letter_tasks.LetterTask):
  """badc=badc (Graves et al. 2014, §4.1)."""

  def answer(self, x):
    return x
