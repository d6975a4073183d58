"""Adam with decoupled weight decay."""

import dataclasses

import optax

from tfm.optimizers.protocol import Optimizer
from tfm.spec import Epsilon, NonNegativeFloat, Rate


@dataclasses.dataclass(frozen=True)
class AdamW(Optimizer):
  """m̂ / (√v̂ + eps) + weight_decay · x (Loshchilov & Hutter 2019, algorithm 2); defaults of GPT-3's
  training.
  """

  normalizes_updates = True

  b1: Rate = 0.9
  b2: Rate = 0.95
  eps: Epsilon = 1e-8
  weight_decay: NonNegativeFloat = 0.1

  def transformation(self, rate, decay_mask):
    return optax.adamw(rate, self.b1, self.b2, self.eps, weight_decay=self.weight_decay, mask=decay_mask)

  def decay(self, rate):
    return rate * self.weight_decay
