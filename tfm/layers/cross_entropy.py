"""Cross-entropy over a vocabulary, in pieces whose logits are never all there at once."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from tfm.shapes import Array, Float, Int, PyTree

Sums = dict[str, Float[Array, '']]


def sums(
    logits: Float[Array, 'B T V'], targets: Int[Array, 'B T'], weights: Float[Array, 'B T'],
    label_smoothing: float, z_loss: float,
) -> tuple[Float[Array, ''], Sums]:
  """The objective and its metrics, summed over weighted tokens.

  Σ weight · ((1 - ε) · -log p(target) + ε · mean over V of -log p + z · log²Z)

  Args:
    label_smoothing: ε, the mass spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    z_loss: z, which keeps the normaliser Z near one (Chowdhery et al. 2022, §5).

  Returns:
    The sum to minimise, and `loss` (nats, without smoothing or penalty), `accuracy` and `tokens`.
  """
  loss, log_z = each(logits, targets)
  objective = loss
  if label_smoothing:
    objective = (1 - label_smoothing) * loss + label_smoothing * (log_z - logits.mean(-1))
  if z_loss:
    objective = objective + z_loss * log_z**2
  right = jnp.argmax(logits, -1) == targets
  return (objective * weights).sum(), dict(
    loss=(loss * weights).sum(), accuracy=(right * weights).sum(), tokens=weights.sum())


def each(
    logits: Float[Array, 'B T V'], targets: Int[Array, 'B T'],
) -> tuple[Float[Array, 'B T'], Float[Array, 'B T']]:
  """-log p(target) of every token in nats, and the logarithm of its normaliser, log Z."""
  log_z = jax.nn.logsumexp(logits, axis=-1)
  # A masked sum rather than a gather: its gradient is no scatter, and it may be cut over V.
  hit = jnp.arange(logits.shape[-1])[None, None, :] == targets[:, :, None]
  return log_z - jnp.where(hit, logits, 0).sum(-1), log_z


def pieces(rows: int, length: int, chunk: int) -> int:
  """How many equal pieces of the length keep rows × piece within `chunk` tokens; 0 is no bound."""
  least = -(-rows * length // chunk) if chunk else 1
  return next(n for n in range(1, length + 1) if length % n == 0 and (n >= least or n == length))


def cut(x: Array, pieces: int) -> Array:
  """[B, T, …] → [pieces, B, T / pieces, …]."""
  return jnp.moveaxis(x.reshape(x.shape[0], pieces, x.shape[1] // pieces, *x.shape[2:]), 1, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_pieces(summed: Callable, head: PyTree, *rows: Array) -> tuple[Float[Array, ''], Sums]:
  """`summed(head, *piece)` added up over the pieces that the first axis of `rows` counts.

  The objective is linear in its own cotangent, so its gradient is made right after each piece's
  logits, while they are at hand: no piece's logits outlive it, and none are made twice. Only the
  objective has a gradient, in `head` and in the first of `rows`; the metrics have none.
  """
  def add(total, piece):
    return jax.tree.map(jnp.add, total, summed(head, *piece)), None
  return jax.lax.scan(add, _zeros(summed, head, *(x[0] for x in rows)), rows)[0]


def _forward(summed, head, *rows):
  gradient = jax.value_and_grad(summed, argnums=(0, 1), has_aux=True)

  def add(total, piece):
    values, (to_head, to_features) = gradient(head, *piece)
    return jax.tree.map(jnp.add, total, (values, to_head)), to_features
  zeros = _zeros(summed, head, *(x[0] for x in rows)), jax.tree.map(jnp.zeros_like, head)
  (total, to_head), to_features = jax.lax.scan(add, zeros, rows)
  return total, (to_head, to_features)


def _backward(summed, gradients, cotangents):
  to_head, to_features = jax.tree.map(lambda x: x * cotangents[0].astype(x.dtype), gradients)
  return to_head, to_features, None, None


in_pieces.defvjp(_forward, _backward)


def _zeros(f, *args):
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(f, *args))
