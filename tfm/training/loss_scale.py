"""Dynamic loss scaling for float16."""

import jax
import jax.numpy as jnp
from flax import struct

from tfm.shapes import Array, Bool, Float, Int, PyTree


GROWTH_INTERVAL = 2000
LARGEST = 2.0**24


@struct.dataclass
class LossScale:
  """The factor on the loss that keeps small float16 gradients above zero (Micikevicius et al. 2018, §3.2).

  It halves when a gradient overflows, and that step is skipped; it doubles after 2000 good steps.
  """

  scale: Float[Array, '']
  good_steps: Int[Array, '']

  @classmethod
  def initial(cls) -> 'LossScale':
    return cls(jnp.float32(2.0**15), jnp.int32(0))

  def update(self, finite: Bool[Array, '']) -> 'LossScale':
    """The scale after a step whose gradients were finite, or not."""
    grown = self.good_steps + 1 >= GROWTH_INTERVAL
    larger = jnp.where(grown, jnp.minimum(self.scale * 2, LARGEST), self.scale)
    smaller = jnp.maximum(self.scale / 2, 1.0)
    return LossScale(jnp.where(finite, larger, smaller), jnp.where(finite & ~grown, self.good_steps + 1, 0))


def all_finite(tree: PyTree) -> Bool[Array, '']:
  """Whether no leaf holds an infinity or NaN."""
  return jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]).all()
