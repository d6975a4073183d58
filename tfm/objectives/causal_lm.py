"""Next-token prediction."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.mixers.protocol import Context
from tfm.objectives.protocol import REPORTS, Objective, Sums, with_reports
from tfm.shapes import Array, Float, Int, PyTree


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
    prefix, weights = self.given(batch, key)
    context = Context(batch['positions'], batch['segments'], prefix, train=key is not None, layout=self.layout)
    read = self.in_turn if self.recurrence and key is not None else self.at_once
    features, reports = read(model, params, batch['inputs'], context, key)

    def sums(head, features, targets, weights):
      return self.sums(model.apply({'params': head}, features, method='logits'), targets, weights)

    pieces = self.pieces(*batch['inputs'].shape)
    head, rows = model.head(params), (features, batch['targets'], weights)
    made = sums(head, *rows) if pieces == 1 else in_pieces(sums, head, *(cut(x, pieces) for x in rows))
    return with_reports(*made, reports)

  def at_once(
      self, model: nn.Module, params: PyTree, tokens: Int[Array, 'B T'], context: Context, key: Array | None,
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """The features of whole rows, and what layers report."""
    (features, _), reports = self.features(model, params, tokens, context, None, key)
    return features, reports

  def in_turn(
      self, model: nn.Module, params: PyTree, tokens: Int[Array, 'B T'], context: Context, key: Array,
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """The same, piece after piece of `recurrence` tokens: the caches of what was read pass no gradient back."""
    rows, length = tokens.shape
    pieces = length // self.recurrence

    def step(caches, piece):
      i, tokens, context = piece
      (features, caches), reports = self.features(
        model, params, tokens, context, caches, jax.random.fold_in(key, i))
      return jax.lax.stop_gradient(caches), (features, reports)

    # In a piece an index is no position.
    context = jax.tree.map(lambda x: cut(x, pieces), context.replace(layout='any'))
    _, (features, reports) = jax.lax.scan(
      step, model.init_caches(rows, length), (jnp.arange(pieces), cut(tokens, pieces), context))
    features = jnp.moveaxis(features, 0, 1).reshape(rows, length, -1)
    return features, jax.tree.map(lambda x: x.mean(0), reports)

  def features(self, model, params, tokens, context, caches, key):
    """`model.features` with dropout by `key`, and the collections that layers report in."""
    return model.apply({'params': params}, tokens, context, caches, method='features',
                       rngs={} if key is None else {'dropout': key}, mutable=[] if key is None else REPORTS)

  def given(self, batch: Mapping[str, Array], key: Array | None) -> tuple[Int[Array, 'B T'] | None, Float[Array, 'B T']]:
    """The prefix length of each token's document, where there are prefixes, and the weight of each target."""
    return None, (batch['segments'] > 0).astype(jnp.float32)

  def pieces(self, rows: int, length: int) -> int:
    """How many equal pieces of the length keep rows × piece within `chunk` tokens."""
    least = -(-rows * length // self.chunk) if self.chunk else 1
    return next(n for n in range(1, length + 1) if length % n == 0 and (n >= least or n == length))

  def sums(
      self, logits: Float[Array, 'B T V'], targets: Int[Array, 'B T'], weights: Float[Array, 'B T']
  ) -> tuple[Float[Array, ''], Sums]:
    """The objective and the metrics, summed over weighted tokens."""
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A masked sum rather than a gather: its gradient is no scatter, and it may be cut over V.
    hit = jnp.arange(logits.shape[-1])[None, None, :] == targets[:, :, None]
    loss = log_z - jnp.where(hit, logits, 0).sum(-1)
    objective = loss
    if self.label_smoothing:
      objective = (1 - self.label_smoothing) * loss + self.label_smoothing * (log_z - logits.mean(-1))
    if self.z_loss:
      objective = objective + self.z_loss * log_z**2
    right = jnp.argmax(logits, -1) == targets
    return (objective * weights).sum(), dict(
      loss=(loss * weights).sum(), accuracy=(right * weights).sum(), tokens=weights.sum())


def cut(x: Array, pieces: int) -> Array:
  """[B, T, …] → [pieces, B, T / pieces, …]."""
  return jnp.moveaxis(x.reshape(x.shape[0], pieces, x.shape[1] // pieces, *x.shape[2:]), 1, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def in_pieces(sums: Callable, head: PyTree, *rows: Array) -> tuple[Float[Array, ''], Sums]:
  """`sums(head, *piece)` added up over the pieces that the first axis of `rows` counts.

  The objective is linear in its own cotangent, so its gradient is made right after each piece's
  logits, while they are at hand: no piece's logits outlive it, and none are made twice. Only the
  objective has a gradient, in `head` and in the first of `rows`; the metrics have none.
  """
  def add(total, piece):
    return jax.tree.map(jnp.add, total, sums(head, *piece)), None
  return jax.lax.scan(add, _zeros(sums, head, *(x[0] for x in rows)), rows)[0]


def _forward(sums, head, *rows):
  gradient = jax.value_and_grad(sums, argnums=(0, 1), has_aux=True)

  def add(total, piece):
    values, (to_head, to_features) = gradient(head, *piece)
    return jax.tree.map(jnp.add, total, (values, to_head)), to_features
  zeros = _zeros(sums, head, *(x[0] for x in rows)), jax.tree.map(jnp.zeros_like, head)
  (total, to_head), to_features = jax.lax.scan(add, zeros, rows)
  return total, (to_head, to_features)


def _backward(sums, gradients, cotangents):
  to_head, to_features = jax.tree.map(lambda x: x * cotangents[0].astype(x.dtype), gradients)
  return to_head, to_features, None, None


in_pieces.defvjp(_forward, _backward)


def _zeros(f, *args):
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(f, *args))
