"""Cross-entropy over a vocabulary, which may be sharded over devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from tfm.layers.float32_gradients import in_memory
from tfm.shapes import Array, Bool, Float, Int


Sums = dict[str, Float[Array, '']]


@dataclasses.dataclass(frozen=True)
class VocabShard:
  """The tokens of the columns of logits, in order, those of the first device first.

  Columns of padding have logits of -∞ (`mask_padding`).

  Attributes:
    axes: the mesh axes that shard them, inside `shard_map`; (): not sharded.
    vocab: V, the number of tokens; further columns are padding. 0: every column is a token, and none is
      sharded.
  """

  axes: tuple[str, ...] = ()
  vocab: int = 0

  def tokens(self, logits: Float[Array, 'B T V']) -> Int[Array, '1 1 V']:
    """The token of each column here."""
    width = logits.shape[-1]
    first = jax.lax.axis_index(self.axes) * width if self.axes else 0
    return (first + jnp.arange(width))[None, None]

  def count(self, logits: Float[Array, 'B T V']) -> int:
    """V."""
    return self.vocab or logits.shape[-1]

  def is_token(self, logits: Float[Array, 'B T V']) -> Bool[Array, '1 1 V'] | bool:
    return self.tokens(logits) < self.vocab if self.vocab else True

  def sum(self, x: Float[Array, 'B T V']) -> Float[Array, 'B T']:
    return self.psum(x.sum(-1))

  def psum(self, x: Array) -> Array:
    return jax.lax.psum(x, self.axes) if self.axes else x

  def max(self, x: Float[Array, 'B T V']) -> Float[Array, 'B T']:
    x = x.max(-1)
    return jax.lax.pmax(x, self.axes) if self.axes else x

  def logits_of(self, tokens: Int[Array, 'B T'], logits: Float[Array, 'B T V']) -> Float[Array, 'B T']:
    """The logit of one token at every position; 0 of one that is not in the vocabulary."""
    if self.axes:
      return self.sum(jnp.where(self.tokens(logits) == tokens[..., None], logits, 0))
    gathered = jnp.take_along_axis(logits, tokens[..., None], -1, mode='clip')[..., 0]
    return jnp.where((0 <= tokens) & (tokens < self.count(logits)), gathered, 0)

  def argmax(self, logits: Float[Array, 'B T V']) -> Int[Array, 'B T']:
    """The token with the greatest logit, the first of equals; 2³¹ - 1 if one is NaN."""
    logits = jax.lax.stop_gradient(logits)
    # A third of the time of `jnp.argmax`, whose loop XLA does not vectorize on CPUs.
    first = jnp.where(logits == self.max(logits)[..., None], self.tokens(logits), jnp.iinfo(jnp.int32).max)
    return jax.lax.pmin(first.min(-1), self.axes) if self.axes else first.min(-1)


WHOLE_VOCABULARY = VocabShard()


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def mask_padding(columns: VocabShard, logits: Float[Array, 'B T V']) -> Float[Array, 'B T V']:
  """The logits, with -∞ in the columns of padding, whose gradient is 0."""
  return _mask_forward(columns, logits)[0]


def _mask_forward(columns, logits):
  if columns.axes or not columns.vocab:
    return jnp.where(columns.is_token(logits), logits, -jnp.inf), None
  return logits.at[..., columns.vocab :].set(-jnp.inf), None  # in place


def _mask_backward(columns, _, gradient):
  # Computed with the gradient that it masks; that of the update in place would copy it.
  return (jnp.where(columns.is_token(gradient), gradient, 0),)


mask_padding.defvjp(_mask_forward, _mask_backward)


def sum_cross_entropy(
  logits: Float[Array, 'B T V'],
  targets: Int[Array, 'B T'],
  weights: Float[Array, 'B T'],
  label_smoothing: float,
  z_loss: float,
  columns: VocabShard = WHOLE_VOCABULARY,
) -> tuple[Float[Array, ''], Sums]:
  """The objective and its metrics, summed over weighted tokens.

  Σ weight · ((1 - ε) · -log p(target) + ε · mean over V of -log p + z · log²Z)

  Args:
    label_smoothing: ε, the mass spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    z_loss: z, which keeps the normaliser Z near one (Chowdhery et al. 2022, §5).
    columns: what the logits are of, if not of the whole vocabulary.

  Returns:
    The sum to minimise, and `loss` (nats, without smoothing or penalty), `accuracy` and `tokens`.
  """
  objective, loss = cross_entropy_with_z_loss(columns, label_smoothing, z_loss, logits, targets)
  right = columns.argmax(logits) == targets
  return (objective * weights).sum(), dict(
    loss=(loss * weights).sum(), accuracy=(right * weights).sum(), tokens=weights.sum()
  )


def log_normalizer(
  logits: Float[Array, 'B T V'], columns: VocabShard = WHOLE_VOCABULARY
) -> Float[Array, 'B T']:
  """log Z of every token, the logarithm of the sum of the exponentials of its logits."""
  most = jax.lax.stop_gradient(columns.max(logits))
  # On CPUs XLA's sum is slow if it computes the exponentials itself.
  return most + jnp.log(columns.sum(in_memory(jnp.exp(logits - most[..., None]))))


def token_cross_entropy(
  logits: Float[Array, 'B T V'], targets: Int[Array, 'B T'], columns: VocabShard = WHOLE_VOCABULARY
) -> tuple[Float[Array, 'B T'], Float[Array, 'B T']]:
  """-log p(target) of every token in nats, and the logarithm of its normaliser, log Z.

  `cross_entropy_with_z_loss` has the faster gradient.
  """
  log_z = log_normalizer(logits, columns)
  return log_z - columns.logits_of(targets, logits), log_z


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def cross_entropy_with_z_loss(
  columns: VocabShard,
  label_smoothing: float,
  z_loss: float,
  logits: Float[Array, 'B T V'],
  targets: Int[Array, 'B T'],
) -> tuple[Float[Array, 'B T'], Float[Array, 'B T']]:
  """The objective of every token, and -log p(target).

  Its gradient needs of other devices nothing but log Z, which they have agreed on:
  (1 + 2 z log Z) p - (1 - ε) [target] - ε / V.
  """
  return _cross_entropy_forward(columns, label_smoothing, z_loss, logits, targets)[0]


def _cross_entropy_forward(columns, label_smoothing, z_loss, logits, targets):
  loss, log_z = token_cross_entropy(logits, targets, columns)
  objective = loss
  if label_smoothing:
    mean = columns.sum(jnp.where(columns.is_token(logits), logits, 0)) / columns.count(logits)
    objective = (1 - label_smoothing) * loss + label_smoothing * (log_z - mean)
  if z_loss:
    objective = objective + z_loss * log_z**2
  return (objective, loss), (logits, targets, log_z)


def _backward(columns, label_smoothing, z_loss, residuals, cotangents):
  logits, targets, log_z = residuals
  to_objective, to_loss = (x[..., None] for x in cotangents)
  p = jnp.exp(logits - log_z[..., None])
  gradient = (to_objective * (1 + 2 * z_loss * log_z[..., None]) + to_loss) * p
  hit = columns.tokens(logits) == targets[..., None]
  gradient -= jnp.where(hit, to_objective * (1 - label_smoothing) + to_loss, 0)
  if label_smoothing:
    gradient -= jnp.where(columns.is_token(logits), to_objective * label_smoothing / columns.count(logits), 0)
  return gradient, None


cross_entropy_with_z_loss.defvjp(_cross_entropy_forward, _backward)
