"""Adafactor: factored second moments, no first moment."""

import dataclasses

import optax

from tfm.optimizers.protocol import Optimizer
from tfm.spec import NonNegativeFloat, PositiveInt


@dataclasses.dataclass(frozen=True)
class Adafactor(Optimizer):
  """Second moments of matrices as outer products of row and column averages (Shazeer & Stern 2018, algorithm
  4).

  Attributes:
    min_dim_size_to_factor: a matrix with a smaller dimension keeps all its second moments.
  """

  weight_decay: NonNegativeFloat = 0.0
  min_dim_size_to_factor: PositiveInt = 128

  def transformation(self, rate, decay_mask):
    return optax.adafactor(
      rate,
      min_dim_size_to_factor=self.min_dim_size_to_factor,
      weight_decay_rate=self.weight_decay or None,
      weight_decay_mask=decay_mask,
    )

  def decay(self, rate):
    # Optax adds it after the learning rate.
    return self.weight_decay
