"""Hyper-connections: several residual streams, and weights between them and the branches that are learned."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.initializer import Initializer, constant, zeros
from tfm.parallel.sharding import with_logical_axes
from tfm.residuals._streams import StreamMixing


@dataclasses.dataclass(frozen=True)
class HyperConnections(StreamMixing):
  """Dynamic hyper-connections (Zhu et al. 2024, "Hyper-Connections", algorithm 2).

    h_t ← Σ_s A_st h_s + b_t f(norm(Σ_s a_s h_s))
    a_s = c_s + σ tanh(U norm'(h_s))
    A_s = 1_s + C_s + τ tanh(V norm'(h_s))
    b_s = 1 + d_s + υ tanh(W norm'(h_s))

  The streams h_1 … h_N start as copies of the embedded token, and are summed after the last block. σ, τ and υ
  start from 0.01, projections, C and d from zeros, and c with a one for one stream, drawn for each branch: in
  the paper, the number of the branch modulo N. There a and A have one scale.

  Attributes:
    streams: N.
  """

  def weigh(self, block, name, h):
    return Weights(block.norm, self.streams, name=f'{name}_connection')(h)


class Weights(nn.Module):
  """a, A, b of one branch.

  Attributes:
    norm: a factory; streams: N.
  """

  norm: Callable
  streams: int

  @nn.compact
  def __call__(self, h):
    N, D = self.streams, h.shape[-1]

    def learn(name, initializer, shape=(), *axes):
      return self.param(name, with_logical_axes(initializer, axes), shape, jnp.float32)

    def weigh(name, size, initializer):
      """bias + scale · tanh(kernel · norm(h)), for each stream."""
      kernel = learn(f'{name}_kernel', zeros, (D, size), 'embed', 'gates')
      bias = learn(f'{name}_bias', initializer, (N, size), 'state', 'gates')
      dynamic = jnp.tanh(jnp.einsum('BTND,DR->BTNR', normed, kernel))
      return learn(f'{name}_scale', constant(0.01)) * dynamic + bias[None, None]

    normed = self.norm(name='norm')(h).astype(jnp.float32)
    read, mix, write = weigh('read', 1, ONE_STREAM), weigh('mix', N, zeros), weigh('write', 1, zeros)
    return read[..., 0], mix + jnp.eye(N)[None, None], write[..., 0] + 1


def draw_stream(key, shape, dtype):
  """A one for one stream, drawn at random, and zeros."""
  return jax.nn.one_hot(jax.random.randint(key, (1,), 0, shape[0]), shape[0], axis=0, dtype=dtype)


ONE_STREAM = Initializer('one stream', draw_stream)
