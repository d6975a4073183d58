"""Parity."""

import dataclasses
import random

from tfm.data import task


@dataclasses.dataclass(frozen=True)
class Parity(task.Lengths):
  """0110=0: whether bits, 0 and 1 alike often, have an odd number of ones (Hahn 2020; Delétang et al. 2023).

  Attributes:
    length, longer: of the bits in training and in the test, as `task.Lengths` has them.
  """

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    bits = ''.join(draw.choices('01', k=self.size(draw, beyond)))
    return task.written([(f'{bits}=', False), (str(bits.count('1') % 2), True)])
