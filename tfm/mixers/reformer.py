"""Reformer: attention among tokens that locality-sensitive hashing puts into one bucket."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.mixers._head_projections import project_from_heads, project_to_heads
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float, Int
from tfm.spec import NonNegativeInt, Size


# Logits of what is not visible, and of a token with itself: finite, so that gradients are no NaN, and so
# far apart that either counts only where nothing better is there.
INVISIBLE, SELF = -1e30, -1e5


class Reformer(Mixer):
  """Attention with queries that are keys, hashed so that only likely pairs are compared (Kitaev et al. 2020,
  §2).

    q = W_QK x,  k = q / |q|,  v = W_V x
    bucket_r(t) = argmax [q_t R_r; -q_t R_r],  R_r ~ N(0, 1)^(C × buckets/2)      for each head and round r
    P_t = ∪_r {s: bucket_r(s) = bucket_r(t), and their ranks in it are less than `chunk` apart}
    y_t = W_O softmax over s in P_t of (q_t · k_s, or -10⁵ for s = t) v_s

  The rank of a token is the number of earlier tokens of its document in its bucket. `mask` applies to every
  pair, so that in a decoder a token attends to the last `chunk` tokens of its bucket, and to itself only if
  there is no other (§2, "Causal masking for shared-QK").

  The paper splits the sequence, sorted by bucket, into chunks of m tokens, and attends to two of them. The
  chunk boundaries depend on later tokens, so attention is not causal and decoding cannot reproduce it. Ranks
  depend on earlier tokens only. In training tokens are sorted likewise, and each chunk of the order attends
  to its
  neighbours: 2 T · chunk pairs per round, or 3 under a noncausal mask. Decoding compares with the whole
    cache.

  A key found in several rounds counts once, as the N_ij of the paper's appendix A ensure; the published code
  counts it once per round. Rounds are combined by their log-sum-exps (appendix A).

  Attributes:
    mask: shared, stateless.
    buckets: of one round, an even number (the paper: 2 T / chunk).
    chunk: how many tokens of its bucket a token looks back and, if the mask allows it, ahead, including
      itself.
    hashes: rounds.
    seed: of the rotations R, which are the same in all layers and not learned.

  Raises (from `validate`):
    ValueError: for an odd number of buckets, or fewer than two; a chunk or rounds below 1.
  """

  mask: Callable
  buckets: Size
  chunk: Size
  hashes: Size = 2
  seed: NonNegativeInt = 0

  examples = ('reformer(buckets=4, chunk=3)',)
  supports_grouped_heads = False

  def validate(self):
    if self.buckets < 2 or self.buckets % 2:
      raise ValueError(f'buckets={self.buckets} must be even and at least 2: each direction has an opposite')

  @nn.nowrap
  def init_cache(self, batch, length):
    shape, rounds = (self.heads, self.head_width, self.dtype), (self.heads, self.hashes, jnp.int32)
    return TokenCache.empty(batch, length, x=shape, v=shape, buckets=rounds, ranks=rounds)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    qk, v = (project_to_heads(self, name, 'heads', x) for name in ('qk', 'v'))
    directions = rotations(self.seed, self.heads, self.head_width, self.hashes, self.buckets)
    buckets = hash_to_buckets(qk, directions)
    tokens = Tokens.of(context, *(y.swapaxes(1, 2) for y in (qk, v, buckets, jnp.zeros_like(buckets))))
    dropout_key = self.make_rng('dropout') if context.train and self.dropout > 0 else None
    if cache is None:
      y = self.attend_sorted(tokens, dropout_key)
    else:
      read = Tokens.of(cache, **cache.arrays)
      tokens = tokens.replace(ranks=before(tokens, read) + before(tokens, tokens))
      cache = cache.append(context, **{name: getattr(tokens, name).swapaxes(1, 2) for name in cache.arrays})
      read = Tokens.of(cache, **cache.arrays)
      neighbours = functools.reduce(operator.or_, self.find_neighbours(tokens, read))
      y, _ = self.attend(tokens, read, neighbours, dropout_key)
    y = shard(y.swapaxes(1, 2), 'batch', 'length', 'heads', 'kv')
    return project_from_heads(self, y), cache

  def attend_sorted(self, tokens, dropout_key):
    """Attention in training, [B H T C]: sorted by bucket, each chunk attends to its neighbours."""
    T = tokens.x.shape[2]
    chunk = min(self.chunk, T)
    tokens = tokens.pad(-T % chunk)
    B, H, S, _ = tokens.x.shape
    order, places = bucket_order(tokens)
    tokens = tokens.replace(ranks=places.swapaxes(2, 3))  # places differ by as much as ranks within a bucket

    def arrange(y):
      """[B H S N] → [B H rounds chunks chunk N], in the order of each round."""
      y = jnp.broadcast_to(y, (B, H, *y.shape[2:]))
      y = jnp.take_along_axis(y, order.reshape(B, H, -1, 1), 2)
      return y.reshape(B, H, self.hashes, S // chunk, chunk, -1)

    def add_neighbours(y):
      """Each chunk with the one before and, if the mask is noncausal, the one after; zeros beyond."""
      ahead = int(self.looks_ahead(S))
      y = jnp.pad(y, [(0, 0)] * 3 + [(1, ahead)] + [(0, 0)] * 2)
      n = S // chunk
      return jnp.concatenate([y[:, :, :, i : i + n] for i in range(2 + ahead)], -2)

    def merge_rounds(y):
      """[B H rounds chunks … N] → [B H rounds·chunks … N]: on CPUs jaxlib 0.10.2 and 0.11.0 crash in sums of
      arrays of seven axes, which the six under `jax.vmap` are (jax issues 39257, 40412)."""
      return y.reshape(B, H, -1, *y.shape[4:])

    queries = jax.tree.map(arrange, tokens)
    keys = jax.tree.map(merge_rounds, jax.tree.map(add_neighbours, queries))
    queries = jax.tree.map(merge_rounds, queries)
    # Pairs found in an earlier round are left out, so that they count once.
    found = self.find_neighbours(queries, keys)
    here = jnp.arange(self.hashes).repeat(S // chunk).reshape(1, 1, -1, 1, 1)
    new = functools.reduce(operator.or_, [(here == r) & found[r] for r in range(self.hashes)])
    old = functools.reduce(operator.or_, [(here > r) & found[r] for r in range(self.hashes)])
    y, log_sum_exp = self.attend(queries, keys, new & ~old, dropout_key)
    y = jnp.take_along_axis(y.reshape(B, H, self.hashes, S, -1), places[..., None], 3)
    log_sum_exp = jnp.take_along_axis(log_sum_exp.reshape(B, H, self.hashes, S), places, 3)
    shares = jax.nn.softmax(log_sum_exp, axis=2)[..., None]
    return (shares * y).sum(2).astype(y.dtype)[:, :, :T]

  def find_neighbours(self, q, k):
    """For each round, whether both are in one bucket with ranks less than a chunk apart, [... T S]."""

    def pairs(of, r):
      return getattr(q, of)[..., r, None], getattr(k, of)[..., None, :, r]

    for_round = []
    for r in range(self.hashes):
      (q_bucket, k_bucket), (q_rank, k_rank) = pairs('buckets', r), pairs('ranks', r)
      for_round.append((q_bucket == k_bucket) & (abs(q_rank - k_rank) < self.chunk))
    return for_round

  def attend(self, q, k, neighbours, dropout_key):
    """softmax(q · k / |k|) v over the visible neighbours, and log Σ exp of those logits."""

    def keys(y):
      return y.swapaxes(-1, -2)

    mask = self.mask.bind_prefix(None if k.prefix is None else keys(k.prefix))
    visible = neighbours & mask(q.positions, keys(k.positions)) & together(q, k)
    logits = jnp.einsum('...TC,...SC->...TS', q.x, k.x, preferred_element_type=jnp.float32)
    square = jnp.square(k.x.astype(jnp.float32)).mean(-1, keepdims=True)
    logits = logits * keys(jax.lax.rsqrt((square + 1e-6) * self.head_width))
    logits = jnp.where(q.positions == keys(k.positions), SELF, logits)
    logits = jnp.where(visible, logits, INVISIBLE)
    log_sum_exp = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    weights = jnp.where(visible.any(-1, keepdims=True), jnp.exp(logits - log_sum_exp), 0)
    if dropout_key is not None:
      keep_mask = jax.random.bernoulli(dropout_key, 1 - self.dropout, weights.shape)
      weights = jnp.where(keep_mask, weights / (1 - self.dropout), 0)
    return jnp.einsum('...TS,...SC->...TC', weights.astype(k.v.dtype), k.v), log_sum_exp[..., 0]

  def looks_ahead(self, length):
    """Whether the mask may show a token a later one; False only if it never does."""
    return not self.mask.relative or bool(np.any(self.mask(np.zeros(length, int), np.arange(1, length + 1))))


@struct.dataclass
class Tokens:
  """The arrays that attention among tokens needs, in any arrangement.

  Attributes:
    x: queries, which are keys; v: values.
    buckets, ranks: for each round of hashing; only differences of ranks within a bucket matter.
    positions, segments, prefix: as in `Context`, one for each token or for those of all heads.
  """

  x: Float[Array, '... T C']
  v: Float[Array, '... T C']
  buckets: Int[Array, '... T N']
  ranks: Int[Array, '... T N']
  positions: Int[Array, '... T 1']
  segments: Int[Array, '... T 1']
  prefix: Int[Array, '... T 1'] | None

  @classmethod
  def of(cls, context: Any, x: Array, v: Array, buckets: Array, ranks: Array) -> 'Tokens':
    """From arrays [B H T …], and positions, segments and prefix [B T] of a `Context` or cache."""
    rows = context.positions, context.segments, context.prefix
    return cls(x, v, buckets, ranks, *(None if row is None else row[:, None, :, None] for row in rows))

  def pad(self, n: int) -> 'Tokens':
    """Appends n tokens of padding."""
    return jax.tree.map(lambda y: jnp.pad(y, ((0, 0), (0, 0), (0, n), (0, 0))), self)


def together(q: Tokens, k: Tokens) -> Bool[Array, '... T S']:
  """Whether both are in one document."""
  k_segments = k.segments.swapaxes(-1, -2)
  return (q.segments == k_segments) & (k_segments != 0)


def before(q: Tokens, k: Tokens) -> Int[Array, 'B H T N']:
  """The number of keys before each query in its document and bucket, for each round."""
  earlier = together(q, k) & (k.positions.swapaxes(-1, -2) < q.positions)
  found = q.buckets[..., :, None, :] == k.buckets[..., None, :, :]
  return (earlier[..., None] & found).sum(-2)


def rotations(seed: int, heads: int, head_width: int, hashes: int, buckets: int) -> Float[Array, 'H C N F']:
  """The random directions of every head and round, half as many as buckets."""
  draw = np.random.default_rng(seed)
  return jnp.asarray(draw.standard_normal((heads, head_width, hashes, buckets // 2)), jnp.float32)


def hash_to_buckets(x: Float[Array, 'B T H C'], rotations: Float[Array, 'H C N F']) -> Int[Array, 'B T H N']:
  """The nearest of the directions and their opposites, for each round (Andoni et al. 2015; §2, "LSH")."""
  # At the highest precision, because a token must fall into the same bucket whatever is computed beside it.
  x = jax.lax.stop_gradient(x).astype(jnp.float32)
  along = jnp.einsum('BTHC,HCNF->BTHNF', x, rotations, precision=jax.lax.Precision.HIGHEST)
  return jnp.argmax(jnp.concatenate([along, -along], -1), -1).astype(jnp.int32)


def bucket_order(tokens: Tokens) -> tuple[Int[Array, 'B H N T'], Int[Array, 'B H N T']]:
  """The token at each place, sorted by document, bucket and position; and the place of each token."""
  buckets = tokens.buckets.swapaxes(2, 3)

  def row(y):
    return jnp.broadcast_to(y.swapaxes(2, 3), buckets.shape)

  index = jnp.broadcast_to(jnp.arange(buckets.shape[-1]), buckets.shape)
  order = jax.lax.sort((row(tokens.segments), buckets, row(tokens.positions), index), num_keys=3)[-1]
  return order, jnp.argsort(order, axis=-1)
