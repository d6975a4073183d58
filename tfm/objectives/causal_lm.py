"""Next-token prediction."""

import dataclasses

import jax
import jax.numpy as jnp

from tfm.mixers.protocol import Context
from tfm.objectives.protocol import Objective
from tfm.shapes import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class CausalLM(Objective):
  """Σ over tokens of -log p(target | what came before) (Radford et al. 2018, eq. 1).

  Attributes:
    label_smoothing: ε, the mass spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    z_loss: weight of log²Z, which keeps the normaliser near one (Chowdhery et al. 2022, §5).

  Raises:
    ValueError: for ε outside [0, 1) or a negative z_loss.
  """

  label_smoothing: float = 0.0
  z_loss: float = 0.0

  def __post_init__(self):
    if not 0 <= self.label_smoothing < 1:
      raise ValueError(f'label_smoothing={self.label_smoothing} must lie in [0, 1)')
    if self.z_loss < 0:
      raise ValueError(f'z_loss={self.z_loss} must be 0 or more')

  def __call__(self, model, params, batch, key):
    context = Context(batch['positions'], batch['segments'], train=key is not None)
    features, _ = model.apply(
      {'params': params}, batch['inputs'], context, method='features', rngs={'dropout': key} if key is not None else {})

    def sums(features, targets, segments):
      logits = model.apply({'params': params}, features, method='logits')
      return self.sums(logits, targets, (segments > 0).astype(jnp.float32))

    pieces = self.pieces(*batch['inputs'].shape)
    if pieces == 1:
      total = sums(features, batch['targets'], batch['segments'])
    else:
      # The logits of a piece are made, used and forgotten; the backward pass makes them again.
      def cut(x):
        return jnp.moveaxis(x.reshape(x.shape[0], pieces, x.shape[1] // pieces, *x.shape[2:]), 1, 0)
      def add(total, piece):
        return jax.tree.map(jnp.add, total, jax.checkpoint(sums)(*piece)), None
      zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(
        sums, *(jax.eval_shape(lambda x: cut(x)[0], x) for x in (features, batch['targets'], batch['segments']))))
      total, _ = jax.lax.scan(add, zero, tuple(map(cut, (features, batch['targets'], batch['segments']))))
    return total['objective'], {name: total[name] for name in ('loss', 'accuracy', 'tokens')}

  def pieces(self, rows: int, length: int) -> int:
    """How many equal pieces of the length keep rows × piece within `chunk` tokens."""
    least = -(-rows * length // self.chunk) if self.chunk else 1
    return next(n for n in range(1, length + 1) if length % n == 0 and (n >= least or n == length))

  def sums(
      self, logits: Float[Array, 'B T V'], targets: Int[Array, 'B T'], weights: Float[Array, 'B T']
  ) -> dict[str, Float[Array, '']]:
    """The objective and the metrics, summed over weighted tokens."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A masked sum rather than a gather: its gradient is no scatter, and it may be cut over V.
    hit = jnp.arange(logits.shape[-1])[None, None, :] == targets[:, :, None]
    target_logit = jnp.where(hit, logits, 0).sum(-1)
    loss = log_z - target_logit
    objective = loss
    if self.label_smoothing:
      objective = (1 - self.label_smoothing) * loss + self.label_smoothing * (log_z - logits.mean(-1))
    if self.z_loss:
      objective = objective + self.z_loss * log_z**2
    right = (jnp.argmax(logits, -1) == targets).astype(jnp.float32)
    return {name: (value * weights).sum() for name, value in (
      ('objective', objective), ('loss', loss), ('accuracy', right), ('tokens', jnp.ones_like(loss)))}
