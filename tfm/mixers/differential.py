"""Differential attention: the difference of two softmax maps, which cancels what both attend to."""

import jax.numpy as jnp

from tfm.layers.initializer import normal
from tfm.mixers._softmax_attention import SoftmaxAttention
from tfm.norms.rmsnorm import RMSNorm
from tfm.parallel.sharding import with_logical_axes
from tfm.spec import Rate


class Differential(SoftmaxAttention):
  """Pairs of heads share their values, and subtract (Ye et al. 2024, "Differential Transformer").

    head_i = (1 - λ₀) rmsnorm((softmax(q_i k_i) - λ softmax(q_j k_j)) [v_i; v_j])
    λ      = exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + λ₀

  The pair i, j reads neighbouring key heads, so that kv_heads is even; of H heads there are H / 2 pairs, with
  values of 2 C channels each, as wide together as those of softmax attention. The norm is over the channels
  of a pair, with a scale. λ₀ of DiffLlama in transformers is 0.8 - 0.6 exp(-0.3 l) in layer l = 0, 1, …,
  which blocks with a mixer of their own can have; here it is one for all that share a spec. Maps of attention
  weights are those of the two softmaxes.

  Attributes (and those of `SoftmaxAttention`):
    initial_lambda: λ₀.

  Raises (from `validate`):
    ValueError: as `SoftmaxAttention`, and for an odd number of key heads.
  """

  initial_lambda: Rate = 0.8

  examples = ('differential(initial_lambda=0.5)',)

  def validate(self):
    super().validate()
    if self.kv_heads % 2:
      raise ValueError(
        f'kv_heads={self.kv_heads} must be even: differential attention subtracts heads in pairs'
      )

  def attend(self, queries, keys, inputs):
    v = keys['v']
    B, S, K, C = v.shape
    both = jnp.broadcast_to(v.reshape(B, S, K // 2, 1, 2 * C), (B, S, K // 2, 2, 2 * C))
    return super().attend(queries, keys | dict(v=both.reshape(B, S, K, 2 * C)), inputs)

  def finish_heads(self, y, x):
    B, T, H, C = y.shape
    first, second = jnp.moveaxis(y.reshape(B, T, self.kv_heads // 2, 2, -1, C).astype(jnp.float32), 3, 0)
    y = RMSNorm(epsilon=1e-5, axis='kv', name='norm')(first - self.compute_lambda() * second)
    return ((1 - self.initial_lambda) * y).astype(self.dtype).reshape(B, T, H, C // 2)

  def compute_lambda(self):
    """λ, a number for all heads of the layer."""
    initializer = with_logical_axes(normal(0.1)((), (0,)), ('kv',))
    q1, k1, q2, k2 = (
      self.param(f'lambda_{name}', initializer, (self.head_width,), jnp.float32)
      for name in ('q1', 'k1', 'q2', 'k2')
    )
    return jnp.exp(q1 @ k1) - jnp.exp(q2 @ k2) + self.initial_lambda
