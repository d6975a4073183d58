"""Stochastic gradient descent."""

import dataclasses

import optax

from tfm.errors import require
from tfm.optimizers.protocol import Optimizer
from tfm.spec import Rate


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
  """Gradient descent with momentum (Sutskever et al. 2013); 0: without.

  Attributes:
    nesterov: whether the gradient is taken after the momentum's step.

  Raises:
    ValueError: for nesterov without momentum.
  """

  normalizes_updates = False

  momentum: Rate = 0.0
  nesterov: bool = False

  def __post_init__(self):
    require(
      not self.nesterov or self.momentum, 'nesterov=True has no effect without momentum; set momentum=0.9'
    )

  def transformation(self, rate, decay_mask):
    return optax.sgd(rate, self.momentum or None, self.nesterov)
