"""Forgetting attention: softmax attention whose weights fade by gates of the layer's input."""

import functools

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from tfm.layers.linear import Linear
from tfm.mixers._softmax_attention import SoftmaxAttention
from tfm.mixers._state_space import find_document_starts
from tfm.parallel.sequence_parallelism import scan_over_sequence_shards
from tfm.shapes import Array, Bool, Float


class Forgetting(SoftmaxAttention):
  """Softmax attention in which every token forgets a part of what stands before it (Lin et al. 2025,
  "Forgetting Transformer").

    f_t = σ(w_f x_t + b_f)  for each head,  c_t = Σ_{r ≤ t} log f_r over its document
    y_i = Σ_j softmax_j(score(q_i, k_j) + c_i - c_j) v_j,  so that weight j fades by f_{j+1} ⋯ f_i

  The sums c are in float32; padding forgets nothing. They travel with the keys and are cached.
  The position may be 'none', as the gates tell near from far, and in the paper none is needed.

  Attributes: those of `SoftmaxAttention`.
  """

  examples = ('forgetting',)
  supports_cross_attention = False
  supports_trees = False  # gates are summed up over the tokens of the cache

  @property
  def cached_shapes(self):
    return super().cached_shapes | dict(sums=(self.heads, 1, jnp.float32))

  def compute_features(self, x, context, cache):
    gates = Linear(
      (self.width, self.heads),
      ('embed', 'heads'),
      self.initializer,
      dtype=self.dtype,
      output_dtype=jnp.float32,
      name='forget',
    )(x)
    log_gates = jnp.where((context.segments != 0)[..., None], jax.nn.log_sigmoid(gates), 0)
    before, document = jnp.zeros((len(x), self.heads)), jnp.zeros(len(x), jnp.int32)
    if cache is not None:
      last = jax.lax.dynamic_slice_in_dim(cache['sums'], jnp.maximum(cache.index - 1, 0), 1, 1)
      before, (_, document) = last[:, 0, :, 0], find_document_starts(cache.segments, document)
    first, _ = find_document_starts(context.segments, document)
    _, sums = scan_over_sequence_shards(sum_by_document, before, (first, log_gates))
    return dict(sums=sums[..., None])

  def attend(self, queries, keys, inputs):
    # The kernel gets the sums as further channels, so that it cuts, sends and differentiates them as it does
    # queries and keys; in float32, as they grow with the length of the row.
    B, S, K, _ = keys['k'].shape
    of_key_heads = keys['sums'].reshape(B, S, K, -1)
    q, k = (
      jnp.concatenate([x.astype(jnp.float32), sums], -1)
      for x, sums in ((queries['q'], queries['sums']), (keys['k'], of_key_heads))
    )
    split = functools.partial(split_channels, self.head_width, self.dtype)
    bias = inputs['bias']
    functions = dict(
      score=Partial(functools.partial(add_fading, split), inputs['score']),
      bias=None if bias is None else Partial(functools.partial(without_sums, split), bias),
    )
    return super().attend(queries | dict(q=q), keys | dict(k=k), inputs | functions)


def sum_by_document(
  before: Float[Array, 'B H'], rows: tuple[Bool[Array, 'B T'], Float[Array, 'B T H']], shared: None
) -> tuple[Float[Array, 'B H'], Float[Array, 'B T H']]:
  """The sum after the last token, and from the start of its document up to each token, on top of `before`.

  Sums along the row would do but for rounding: what the documents before add to c_i and c_j does not cancel
  exactly.

  Args:
    rows: which tokens are the first of a document, and what is summed.
  """

  def combine(left, right):
    return left[0] | right[0], right[1] + jnp.where(right[0], 0, left[1])

  first, x = rows
  started, sums = jax.lax.associative_scan(combine, (first[..., None], x), axis=1)
  sums = sums + jnp.where(started, 0, before[:, None])
  return sums[:, -1], sums


def split_channels(width, dtype, x):
  """Queries or keys in the compute type, and the sums beside them."""
  return x[..., :width].astype(dtype), x[..., width:]


def add_fading(split, score, q, k):
  """score(q, k) + c_i - c_j, [B K G T S]."""
  (q, q_sums), (k, k_sums) = split(q), split(k)
  return score(q, k) + q_sums - jnp.moveaxis(k_sums, -1, 2)[:, :, :, None]


def without_sums(split, bias, q, k, q_locations, k_locations):
  """The bias of a position, which reads queries and keys alone."""
  return bias(split(q)[0], split(k)[0], q_locations, k_locations)
