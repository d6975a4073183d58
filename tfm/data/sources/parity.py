"""Parity."""

import dataclasses
import random

from tfm.data import synthetic_task


@dataclasses.dataclass(frozen=True)
class Parity(synthetic_task.LengthTask):
  """0110=0: whether uniformly random bits have an odd number of ones (Hahn 2020; Delétang et al. 2023).

  Attributes:
    length, longer: the number of bits in training and in the test split, as in `task.LengthTask`.
  """

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    bits = ''.join(draw.choices('01', k=self.draw_length(draw, is_test)))
    return synthetic_task.format_example([(f'{bits}=', False), (str(bits.count('1') % 2), True)])
