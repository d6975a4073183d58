"""PaTH: softmax attention whose keys are reflected by every token between them and the query."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.linear import Linear
from tfm.mixers._attention import Attention
from tfm.mixers._head_projections import unit
from tfm.mixers._token_cache import TokenCache
from tfm.mixers._triangular import solve
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float, Int


class Path(Attention):
  """Softmax attention with accumulated Householder transformations for a position (Yang et al. 2025, "PaTH
  Attention", §3).

    logits_ij = q_i · H_i ⋯ H_{j+1} k_j / √C,  H_t = I - β_t w_t w_tᵀ
    β_t = 2 σ(W_β x_t + b),  w_t = W_w x_t, scaled to length one, for each key head

  The product of a key is computed from what each token t takes off it,
  e_tj = β_t w_t · H_{t-1} ⋯ H_{j+1} k_j, the solution of a triangular system, in float32: of T tokens in T³
  steps. The cache has the keys as the tokens read so far have left them, so that a new token reflects each
  once. The paper's W_w of two factors is one matrix here, its short convolution of w is a Canon layer
  (config.model.canon='B'), and its forget gate is left out. Padding reflects nothing.
  """

  examples = ('path',)
  supported_masks = ('causal',)
  supports_cross_attention = False
  supports_mup = False
  position_hooks = frozenset()

  def validate(self):
    if not self.score.func.absorbs_key_projection:
      raise ValueError(
        f'the score {self.score.func.__name__.lower()!r} is not linear in the keys, which PaTH reflects; use '
        "'dot'"
      )

  @property
  def cached_shapes(self):
    # In float32, as each token moves them again.
    return super().cached_shapes | dict(k=(self.kv_heads, self.head_width, jnp.float32))

  @nn.nowrap
  def init_cache(self, batch, length):
    return TokenCache.empty(batch, length, **self.cached_shapes)

  @property
  def transformed_shapes(self):
    return super().transformed_shapes | dict(w=self.head_shape('k'))

  def compute_features(self, x, context, cache):
    shape, axes = self.head_shape('k')
    project = Linear(
      (self.width, *shape), ('embed', *axes), self.initializer, bias=False, dtype=self.dtype, name='w'
    )
    beta = Linear(
      (self.width, self.kv_heads),
      ('embed', axes[0]),
      self.initializer,
      dtype=self.dtype,
      output_dtype=jnp.float32,
      name='beta',
    )
    w = self.transform('w', shard(project(x), 'batch', 'length', *axes))
    real = (context.segments != 0)[..., None]
    rates = jnp.where(real, 2 * jax.nn.sigmoid(beta(x)), 0)
    return dict(w=unit(w.astype(jnp.float32)), beta=rates[..., None])

  def attend(self, queries, keys, inputs):
    arrays = queries['q'], queries['w'], queries['beta'], keys['k'].astype(jnp.float32)
    keys = keys | dict(k=keys['k'].astype(self.dtype))
    return super().attend(queries, keys, inputs | dict(row_normalizer=Partial(reflect_logits, *arrays)))

  def update_cache(self, cache, queries, inputs):
    places = (inputs[f'{of}_{what}'] for of in 'qk' for what in ('segments', 'positions'))
    taken = solve_taken(queries['w'], queries['beta'], cache['k'], *places)
    k = cache.arrays['k'] - jnp.einsum('BTKC,BKTS->BKSC', queries['w'], taken)
    return cache.replace(arrays={**cache.arrays, 'k': k})


def reflect_logits(
  q: Float[Array, 'B T H C'],
  w: Float[Array, 'B T K C'],
  beta: Float[Array, 'B T K 1'],
  k: Float[Array, 'B S K C'],
  logits: Float[Array, 'B K G T S'],
  visible: Bool[Array, 'B 1 1 T S'],
  inputs: object,
) -> Float[Array, 'B K G T S']:
  """The weights of reflected keys, from the logits of keys as they were before these tokens."""
  taken = solve_taken(
    w, beta, k, inputs.q_segments, inputs.q_positions, inputs.k_segments, inputs.k_positions
  )
  until = is_same(inputs.q_segments, inputs.q_segments) & (
    inputs.q_positions[:, :, None] >= inputs.q_positions[:, None, :]
  )
  B, T, K, C = w.shape
  grouped = jnp.moveaxis(q.astype(jnp.float32).reshape(B, T, K, -1, C), 1, 3)
  overlap = jnp.where(until[:, None, None], inputs.score(grouped, w.swapaxes(1, 2)), 0)
  logits = logits - jnp.einsum('BKGTU,BKUS->BKGTS', overlap, taken)
  weights = jax.nn.softmax(jnp.where(visible, logits, -1e30), -1)
  return jnp.where(visible, weights, 0)


def solve_taken(  # more than six parameters: the tokens, and where they and the keys stand
  w: Float[Array, 'B T K C'],
  beta: Float[Array, 'B T K 1'],
  k: Float[Array, 'B S K C'],
  segments: Int[Array, 'B T'],
  positions: Int[Array, 'B T'],
  k_segments: Int[Array, 'B S'],
  k_positions: Int[Array, 'B S'],
) -> Float[Array, 'B K T S']:
  """e: how far token t moves key s along -w_t, for keys before it in its document."""
  after = is_same(segments, k_segments) & (positions[:, :, None] > k_positions[:, None, :])
  rates = jnp.moveaxis(beta, 1, 2)
  right = jnp.where(after[:, None], rates * jnp.einsum('BTKC,BSKC->BKTS', w, k), 0)
  system = rates * jnp.einsum('BTKC,BUKC->BKTU', w, w)
  return solve(jnp.where(is_same(segments, segments)[:, None], system, 0), right)


def is_same(a: Int[Array, 'B T'], b: Int[Array, 'B S']) -> Bool[Array, 'B T S']:
  """Whether tokens are of one document."""
  return a[:, :, None] == b[:, None, :]
