"""Sorting."""

import dataclasses

from tfm.data import letters


@dataclasses.dataclass(frozen=True)
class Sort(letters.Letters):
  """badc=abcd: letters in the order of the alphabet, lower case first, each as often as it stands there
  (after Graves et al. 2014, §4.5, whose priorities are numbers).
  """

  def answer(self, x):
    return ''.join(sorted(x, key=lambda letter: letter.swapcase()))
