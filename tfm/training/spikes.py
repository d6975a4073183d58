"""Steps that are skipped because their gradient is far larger than usual."""

import jax.numpy as jnp
from flax import struct

from tfm.shapes import Array, Bool, Float, Int


DECAY = 0.98  # of the running mean, from one step to the next
LEARNING = 20  # first steps, which are taken whatever they are: nothing tells yet what is usual


@struct.dataclass
class Spikes:
  """A running mean of the gradient's global norm, and how often a step exceeded it by a factor.

  PaLM's training (Chowdhery et al. 2022, §5.1) was set back before each spike of the loss and skipped the batches that had
  led to it; here the one step is left out, before it does harm. Optax skips what is not finite (`apply_if_finite`) or above
  a fixed norm (`skip_large_updates`), and knows no mean.

  Attributes:
    mean: m ← 0.98 m + 0.02 min(norm, factor · m), from which the zero of its beginning is divided out. What is skipped counts
      as much as may pass, so that a norm that stays high is the usual one after a while.
    seen, skipped: steps.
  """

  mean: Float[Array, '']
  seen: Int[Array, '']
  skipped: Int[Array, '']

  @classmethod
  def initial(cls) -> 'Spikes':
    return cls(jnp.float32(0), jnp.int32(0), jnp.int32(0))

  def usual(self) -> Float[Array, '']:
    """The mean norm so far."""
    return self.mean / jnp.maximum(1 - DECAY ** self.seen.astype(jnp.float32), 1e-9)

  def judged(self, norm: Float[Array, ''], factor: float) -> tuple[Bool[Array, ''], 'Spikes']:
    """Whether a step of this gradient norm is a spike, and what is remembered after it."""
    most = factor * self.usual()
    spike = (self.seen >= LEARNING) & (norm > most)
    counted = jnp.where(spike, most, norm)
    return spike, Spikes(DECAY * self.mean + (1 - DECAY) * counted, self.seen + 1, self.skipped + spike)
