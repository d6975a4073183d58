"""Addition."""

import dataclasses
import random

from tfm.data import synthetic_task
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Addition(synthetic_task.LengthTask):
  """285+34=319: the sum and the end of the text are the answer (Lee et al. 2023).

  Attributes:
    length, longer: the number of digits of each summand in training and in the test split, as in
      `task.LengthTask`, without leading zeros.
    reversed: whether the digits of the sum are in reverse order, the units first, so that each carry is
      known when it is needed (ibid.): 285+34=913.
  """

  length: Size = 5
  longer: Size | None = 8
  reversed: bool = False

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    a, b = (self._summand(draw, is_test) for _ in range(2))
    total = str(a + b)[:: -1 if self.reversed else 1]
    return synthetic_task.format_example([(f'{a}+{b}=', False), (total, True)], end=True)

  def _summand(self, draw: random.Random, is_test: bool) -> int:
    digits = self.draw_length(draw, is_test)
    return draw.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
