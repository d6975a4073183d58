"""Manifold-constrained hyper-connections: several residual streams, mixed by doubly stochastic matrices."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import normal, ones, zeros
from tfm.parallel.sharding import with_logical_axes
from tfm.residuals._streams import StreamMixing
from tfm.spec import PositiveInt


EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class ManifoldHyperConnections(StreamMixing):
  """Hyper-connections whose matrix between streams keeps their sum ("mHC", Xie et al. 2025; DeepSeek-V4 in
  transformers).

    h_t ← Σ_s A_st h_s + b_t f(norm(Σ_s a_s h_s))
    z = [h_1 … h_N] / rms      a = sigmoid(α W z + c)      b = 2 sigmoid(β V z + d)
    A = Sinkhorn(softmax(γ U z + e)): rows and columns divided by their sums in turn

  The streams start as copies of the embedded token, and are summed after the last block. W, V, U start from
  N(0, 0.02²), c, d, e from zeros and α, β, γ from ones, as there.

  Attributes:
    streams: N.
    iterations: of Sinkhorn and Knopp.
  """

  iterations: PositiveInt = 20

  examples = ('manifold_hyper_connections', 'manifold_hyper_connections(streams=2, iterations=3)')

  def weigh(self, block, name, h):
    return Weights(self.streams, self.iterations, name=f'{name}_connection')(h)


class Weights(nn.Module):
  """a, A, b of one branch.

  Attributes: those of `ManifoldHyperConnections`.
  """

  streams: int
  iterations: int

  @nn.compact
  def __call__(self, h):
    B, T, N, D = h.shape
    h = h.astype(jnp.float32)
    z = h * jax.lax.rsqrt((h * h).mean((2, 3), keepdims=True) + EPSILON)

    def project(name, size):
      def learn(what, initializer, shape, *axes):
        return self.param(f'{name}_{what}', with_logical_axes(initializer, axes), shape, jnp.float32)

      kernel = learn('kernel', normal()((0, 1), (2,)), (N, D, size), 'state', 'embed', 'gates')
      y = jnp.einsum('BTND,NDR->BTR', z, kernel) * learn('scale', ones, ())
      return y + learn('bias', zeros, (size,), 'gates')[None, None]

    mix = jax.nn.softmax(project('mix', N * N).reshape(B, T, N, N), -1) + EPSILON
    mix = mix / (mix.sum(-2, keepdims=True) + EPSILON)
    for _ in range(self.iterations - 1):
      mix = mix / (mix.sum(-1, keepdims=True) + EPSILON)
      mix = mix / (mix.sum(-2, keepdims=True) + EPSILON)
    return jax.nn.sigmoid(project('read', N)) + EPSILON, mix, 2 * jax.nn.sigmoid(project('write', N))
