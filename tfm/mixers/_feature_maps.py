"""Feature maps of linear attention: φ(q) · φ(k) stands for exp(q · k)."""

import abc
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tfm.shapes import Array, Float, Int
from tfm.spec import NonNegativeInt, Size


class FeatureMap(abc.ABC):
  """φ, of every query and key alone."""

  def width(self, channels: int) -> int:
    """The features of a head with so many channels."""
    return channels

  @abc.abstractmethod
  def __call__(
    self, x: Float[Array, 'B T H C'], positions: Int[Array, 'B T'], is_query: bool
  ) -> Float[Array, 'B T H F']:
    """The features of queries, up to a factor of each that its weights share, or of keys, in float32."""


class Elu(FeatureMap):
  """elu(x) + 1 (Katharopoulos et al. 2020, eq. 7), in a form without cancellation for x far below 0."""

  def __call__(self, x, positions, is_query):
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


class Relu(FeatureMap):
  """max(x, 0) (Kasai et al. 2021, T2R; their learned map is one with the projections to queries and keys)."""

  def __call__(self, x, positions, is_query):
    return jax.nn.relu(x)


class Softmax(FeatureMap):
  """Softmax over channels, as Shen et al. (2021, §3.2) do to queries; keys likewise, so that no sum over
  tokens is needed.
  """

  def __call__(self, x, positions, is_query):
    return jax.nn.softmax(x)


@dataclasses.dataclass(frozen=True)
class Cosformer(FeatureMap):
  """φ(x) at position i is [max(x, 0) cos(πi / 2M); max(x, 0) sin(πi / 2M)], so that φ(q) · φ(k) is
  max(q, 0) · max(k, 0) times cos(π (i - j) / 2M) (Qin et al. 2022, "cosFormer").

  Attributes:
    length: M, at least the tokens of the longest document; later positions count as M, so that no weight is
      negative.
  """

  length: Size

  def width(self, channels):
    return 2 * channels

  def __call__(self, x, positions, is_query):
    angle = (jnp.minimum(positions, self.length) * (jnp.pi / 2 / self.length))[:, :, None, None]
    x = jax.nn.relu(x)
    return jnp.concatenate([x * jnp.cos(angle), x * jnp.sin(angle)], -1)


@dataclasses.dataclass(frozen=True)
class Favor(FeatureMap):
  """φ(x) = exp(W x' - |x'|² / 2) / √features with x' = x / C^¼ and random W, so that the mean of φ(q) · φ(k)
  over W is exp(q · k / √C) (Choromanski et al. 2021, "Rethinking attention with Performers", FAVOR+).

  Rows of W are orthogonal in blocks of C, with the lengths of Gaussian vectors. They are constants, the same
  in all heads and layers, and are not drawn again. The features of a query are divided by the largest one.

  Attributes:
    features: rows of W; seed: of W.
  """

  features: Size = 256
  seed: NonNegativeInt = 0

  def width(self, channels):
    return self.features

  def __call__(self, x, positions, is_query):
    C = x.shape[-1]
    x = x * C**-0.25
    exponent = jnp.einsum('BTHC,FC->BTHF', x, jnp.asarray(orthogonal_rows(self.features, C, self.seed)))
    exponent = exponent - (x * x).sum(-1, keepdims=True) / 2
    if is_query:
      exponent = exponent - jax.lax.stop_gradient(exponent.max(-1, keepdims=True))
    return jnp.exp(exponent) * self.features**-0.5


def orthogonal_rows(rows: int, channels: int, seed: int) -> Float[np.ndarray, 'F C']:
  """Rows from N(0, I), of which every `channels` are made orthogonal and keep their lengths."""
  draw = np.random.default_rng(seed)
  q, r = np.linalg.qr(draw.standard_normal((-(-rows // channels), channels, channels)))
  # Householder reflections give columns a preferred sign; that of R takes it away.
  q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None]
  lengths = np.linalg.norm(draw.standard_normal((rows, channels)), axis=-1, keepdims=True)
  return (q.reshape(-1, channels)[:rows] * lengths).astype(np.float32)


FEATURE_MAPS = {kind.__name__.lower(): kind for kind in (Elu, Relu, Softmax, Cosformer, Favor)}
