"""Adam."""

import dataclasses

import optax

from tfm.optimizers.protocol import Optimizer
from tfm.spec import Epsilon, Rate


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
  """m̂ / (√v̂ + eps), the moments' averages decaying with b1 and b2 (Kingma & Ba 2015, algorithm 1)."""

  normalizes_updates = True

  b1: Rate = 0.9
  b2: Rate = 0.999
  eps: Epsilon = 1e-8

  def transformation(self, rate, decay_mask):
    return optax.adam(rate, self.b1, self.b2, self.eps)
