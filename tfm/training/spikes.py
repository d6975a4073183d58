"""Skipping steps whose gradient norm is far above its running mean."""

import jax.numpy as jnp
from flax import struct

from tfm.shapes import Array, Bool, Float, Int


DECAY = 0.98  # of the running mean, from one step to the next
LEARNING = 20  # first steps, which are never skipped: the mean is not yet reliable


@struct.dataclass
class Spikes:
  """A running mean of the gradient's global norm, and how often a step exceeded it by a factor.

  PaLM's training (Chowdhery et al. 2022, §5.1) restarted before each loss spike and skipped the batches
  around it; here the one step is skipped before it changes the parameters. Optax skips updates that are not
  finite (`apply_if_finite`) or above a fixed norm (`skip_large_updates`); it has no running mean.

  Attributes:
    mean: m ← 0.98 m + 0.02 min(norm, factor · m), before bias correction. A skipped step counts with the
      threshold, so that a norm that stays high is accepted after a while.
    seen, skipped: steps.
  """

  mean: Float[Array, '']
  seen: Int[Array, '']
  skipped: Int[Array, '']

  @classmethod
  def initial(cls) -> 'Spikes':
    return cls(jnp.float32(0), jnp.int32(0), jnp.int32(0))

  def mean_norm(self) -> Float[Array, '']:
    """The bias-corrected mean norm so far."""
    return self.mean / jnp.maximum(1 - DECAY ** self.seen.astype(jnp.float32), 1e-9)

  def update(self, norm: Float[Array, ''], factor: float) -> tuple[Bool[Array, ''], 'Spikes']:
    """Whether a step of this gradient norm is a spike, and the statistics after it."""
    threshold = factor * self.mean_norm()
    spike = (self.seen >= LEARNING) & (norm > threshold)
    counted = jnp.where(spike, threshold, norm)
    return spike, Spikes(DECAY * self.mean + (1 - DECAY) * counted, self.seen + 1, self.skipped + spike)
