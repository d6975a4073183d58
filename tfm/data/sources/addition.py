"""Addition."""

import dataclasses
import random

from tfm.data import task


@dataclasses.dataclass(frozen=True)
class Addition(task.Lengths):
  """285+34=319: the sum, and the end of the text, is the answer (Lee et al. 2023).

  Attributes:
    length, longer: digits of each summand in training and in the test, as `task.Lengths` has them, without
      zeros in front.
    reversed: whether the digits of the sum stand the other way round, the units first, so that a carry is
      known when it is used (the same): 285+34=913.
  """

  length: int = 5
  longer: int | None = 8
  reversed: bool = False

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    a, b = (self._summand(draw, beyond) for _ in range(2))
    total = str(a + b)[:: -1 if self.reversed else 1]
    return task.written([(f'{a}+{b}=', False), (total, True)], end=True)

  def _summand(self, draw: random.Random, beyond: bool) -> int:
    digits = self.size(draw, beyond)
    return draw.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
