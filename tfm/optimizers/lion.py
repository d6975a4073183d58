"""Lion: the sign of a momentum."""

import dataclasses

import optax

from tfm.optimizers.protocol import Optimizer
from tfm.spec import NonNegativeFloat, Rate


@dataclasses.dataclass(frozen=True)
class Lion(Optimizer):
  """sign(b1 m + (1 - b1) g) + weight_decay · x, then m ← b2 m + (1 - b2) g (Chen et al. 2023, alg. 2)."""

  normalizes_updates = True

  b1: Rate = 0.9
  b2: Rate = 0.99
  weight_decay: NonNegativeFloat = 0.1

  def transformation(self, rate, decay_mask):
    return optax.lion(rate, self.b1, self.b2, weight_decay=self.weight_decay, mask=decay_mask)

  def decay(self, rate):
    return rate * self.weight_decay
