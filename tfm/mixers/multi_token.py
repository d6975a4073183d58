"""Multi-token attention: weights depend on the logits of neighbouring queries, keys and heads."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.initializer import Initializer
from tfm.mixers._attention import Attention
from tfm.norms.rmsnorm import RMSNorm
from tfm.parallel.sharding import with_logical_axes
from tfm.shapes import Array, Bool, Float
from tfm.spec import Size


class MultiToken(Attention):
  """Softmax attention with convolutions over logits and over heads (Golovneva et al. 2025, "Multi-token
  attention").

    logits'_ts = Σ_{a < queries} Σ_b θ_ab logits_{t-a, s-b},  -⌊keys / 2⌋ ≤ b < ⌈keys / 2⌉,  θ of each head
    weights    = softmax over s of logits'_ts
    head_h     = rmsnorm(Σ_{h' in its group} w_hh' weights_h' v)

  In the first sum, logits of keys after their query, and of other documents, are zero. Neighbours are those
  of the row, so that padding within a document parts it. θ and w start as identities; the scale of the norm
  stands for the paper's factor that depends on the depth. The logits of the last queries are cached beside
  each key.

  Attributes:
    queries, keys: taps of θ.
    group: neighbouring heads that are mixed.

  Raises (from `validate`):
    ValueError: for a group that does not divide the heads.
  """

  queries: Size = 6
  keys: Size = 11
  group: Size = 2

  examples = ('multi_token(queries=3, keys=4)',)
  supported_masks = ('causal',)
  supports_cross_attention = False

  def validate(self):
    if self.heads % self.group:
      raise ValueError(f'group={self.group} must divide heads={self.heads}')

  @property
  def cached_shapes(self):
    return super().cached_shapes | dict(recent=(self.heads, self.queries - 1, jnp.float32))

  def compute_features(self, x, context, cache):
    return dict(recent=jnp.zeros((*x.shape[:2], self.heads, self.queries - 1)))

  def attend(self, queries, keys, inputs):
    def learn(name, size, first):
      """A vector for each head, with a one at `first(head)`."""

      def make(key, shape, dtype):
        return jax.nn.one_hot(first(jnp.arange(shape[0])), size, dtype=dtype)

      initializer = with_logical_axes(Initializer('identity', make), ('heads', 'taps'))
      return self.param(name, initializer, (self.heads, size), jnp.float32)

    taps = learn('taps', self.queries * self.keys, lambda head: 0 * head + self.keys // 2)
    mix = learn('mix_heads', self.group, lambda head: head % self.group)
    recent = jnp.moveaxis(keys['recent'], 1, 3)
    learned = taps.reshape(self.heads, self.queries, self.keys), mix, recent
    return super().attend(queries, keys, inputs | dict(row_normalizer=Partial(convolve_and_mix, *learned)))

  def update_cache(self, cache, queries, inputs):
    # As weights: rows of logits are what a normalizer gets.
    visible = inputs | dict(row_normalizer=Partial(visible_logits))
    logits = self.kernel.attention_weights(queries['q'], cache['k'], **visible)
    recent = jnp.concatenate([cache.arrays['recent'].swapaxes(2, 3), logits], 2)
    recent = recent[:, :, recent.shape[2] - self.queries + 1 :].swapaxes(2, 3)
    return cache.replace(arrays={**cache.arrays, 'recent': recent})

  def finish_heads(self, y, x):
    return RMSNorm(axis='kv', name='norm')(y)


def visible_logits(
  logits: Float[Array, 'B K G T S'], visible: Bool[Array, 'B 1 1 T S'], inputs: object
) -> Float[Array, 'B K G T S']:
  """The logits, zero where a query does not see the key."""
  return jnp.where(visible, logits, 0)


def convolve_and_mix(
  taps: Float[Array, 'H N J'],
  mix: Float[Array, 'H M'],
  recent: Float[Array, 'B H I S'],
  logits: Float[Array, 'B K G T S'],
  visible: Bool[Array, 'B 1 1 T S'],
  inputs: object,
) -> Float[Array, 'B K G T S']:
  """The weights.

  Args:
    recent: the visible logits of the queries before these.
  """
  B, K, G, T, S = logits.shape
  H, N, J = taps.shape
  rows = visible_logits(logits, visible, inputs).reshape(B, H, T, S)
  rows = jnp.concatenate([recent, rows], 2)
  in_document = (inputs.q_segments[:, :, None] == inputs.k_segments[:, None, :])[:, None]
  convolved = sum(
    jax.lax.conv_general_dilated(
      jnp.where(in_document, rows[:, :, N - 1 - a : N - 1 - a + T], 0),
      taps[:, None, a : a + 1, ::-1],
      window_strides=(1, 1),
      padding=((0, 0), ((J + 1) // 2 - 1, J // 2)),
      feature_group_count=H,
    )
    for a in range(N)
  )
  weights = jax.nn.softmax(jnp.where(visible[:, 0], convolved, -1e30), -1)
  weights = jnp.where(visible[:, 0], weights, 0).reshape(B, H // mix.shape[1], mix.shape[1], T, S)
  mixed = jnp.einsum('BGMTS,GNM->BGNTS', weights, mix.reshape(-1, mix.shape[1], mix.shape[1]))
  return mixed.reshape(B, K, G, T, S)
