"""Sorting."""

import dataclasses

from tfm.data import letter_tasks


@dataclasses.dataclass(frozen=True)
class Sort(letter_tasks.LetterTask):
  """badc=abcd: the letters in alphabetical order, lower case first, with repetitions (after Graves et al.
  2014, §4.5, whose priorities are numbers).
  """

  def answer(self, x):
    return ''.join(sorted(x, key=lambda letter: letter.swapcase()))
