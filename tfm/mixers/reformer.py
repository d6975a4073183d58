"""Attention among tokens that a hash puts into one bucket."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from tfm.layers.linear import Linear
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float, Int


# Logits of what is not seen, and of a token with itself: finite, so that gradients are no NaN, and so
# far apart that either counts only where nothing better is there.
UNSEEN, ITSELF = -1e30, -1e5


class Reformer(Mixer):
  """Attention with queries that are keys, hashed so that only likely pairs meet (Kitaev et al. 2020, §2).

    q = W_QK x,  k = q / |q|,  v = W_V x
    bucket_r(t) = argmax [q_t R_r; -q_t R_r],  R_r ~ N(0, 1)^(C × buckets/2)      for each head and round r
    P_t = ∪_r {s: bucket_r(s) = bucket_r(t), and their ranks in it are less than `chunk` apart}
    y_t = W_O softmax over s in P_t of (q_t · k_s, or -10⁵ for s = t) v_s

  The rank of a token in its bucket is how many tokens of its document and bucket stand before it, and
  `mask` is asked about every pair, so that in a decoder a token attends to the last `chunk` of its
  bucket, itself last and only where nothing else is there (§2, "Causal masking for shared-QK").

  The paper cuts the sequence, sorted by bucket, every m tokens, and attends in two such chunks. Where
  the cuts fall depends on all tokens, later ones too, so what a token sees changes with the future,
  and decoding cannot repeat it. Ranks do without cuts: they are told by what was read. In training
  tokens are sorted all the same, and chunks of the order meet their neighbours: 2 T · chunk pairs a
  round, or 3 where the mask looks ahead. A step asks all of the cache.

  A key that several rounds find counts once, as the N_ij of the paper's appendix A make it; the
  published code counts it once a round. Rounds are combined by their log-sum-exps (appendix A).

  Attributes:
    mask: shared, stateless.
    buckets: of one round, an even number (the paper: 2 T / chunk).
    chunk: tokens of a bucket that a token looks back and, where the mask lets it, ahead, itself one of them.
    hashes: rounds.
    seed: of the rotations R, which are constants, the same in all layers, and not learned.

  Raises (from `check`):
    ValueError: for an odd number of buckets, or fewer than two; a chunk or rounds below 1.
  """

  mask: Callable
  buckets: int
  chunk: int
  hashes: int = 2
  seed: int = 0

  examples = ('reformer(buckets=4, chunk=3)',)
  supports_grouped_heads = False

  def check(self):
    if self.buckets < 2 or self.buckets % 2:
      raise ValueError(f'buckets={self.buckets} must be even and at least 2: each direction has an opposite')
    for field in ('chunk', 'hashes'):
      if getattr(self, field) < 1:
        raise ValueError(f'{field}={getattr(self, field)} must be at least 1')

  @nn.nowrap
  def init_cache(self, batch, length):
    kept, hashed = (self.heads, self.head_width, self.dtype), (self.heads, self.hashes, jnp.int32)
    return TokenCache.empty(batch, length, x=kept, v=kept, buckets=hashed, ranks=hashed)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    if memory is not None:
      raise ValueError("mixer='reformer' does not support cross-attention; use 'softmax'")
    qk, v = self.project('qk', x), self.project('v', x)
    buckets = hashed(qk, rotations(self.seed, self.heads, self.head_width, self.hashes, self.buckets))
    tokens = Tokens.of(context, *(y.swapaxes(1, 2) for y in (qk, v, buckets, jnp.zeros_like(buckets))))
    dropped = self.make_rng('dropout') if context.train and self.dropout > 0 else None
    if cache is None:
      y = self.attend_sorted(tokens, dropped)
    else:
      read = Tokens.of(cache, **cache.kept)
      tokens = tokens.replace(ranks=before(tokens, read) + before(tokens, tokens))
      cache = cache.append(context, **{name: getattr(tokens, name).swapaxes(1, 2) for name in cache.kept})
      read = Tokens.of(cache, **cache.kept)
      y, _ = self.attend(tokens, read, functools.reduce(operator.or_, self.near(tokens, read)), dropped)
    y = shard(y.swapaxes(1, 2), 'batch', 'length', 'heads', 'kv')
    y = Linear(
      (self.heads, self.head_width, self.width),
      ('heads', 'kv', 'embed'),
      self.output_initializer,
      contracted=2,
      bias=self.bias,
      dtype=self.dtype,
      name='out',
    )(y)
    return shard(y, 'batch', 'length', 'embed'), cache

  def project(self, name, x):
    y = Linear(
      (self.width, self.heads, self.head_width),
      ('embed', 'heads', 'kv'),
      self.initializer,
      bias=self.bias,
      dtype=self.dtype,
      name=name,
    )(x)
    return shard(y, 'batch', 'length', 'heads', 'kv')

  def attend_sorted(self, tokens, dropped):
    """The training form, [B H T C]: sorted by bucket, each chunk of the order attends to its neighbours."""
    T = tokens.x.shape[2]
    chunk = min(self.chunk, T)
    tokens = tokens.padded(-T % chunk)
    B, H, S, _ = tokens.x.shape
    order, places = bucket_order(tokens)
    tokens = tokens.replace(ranks=places.swapaxes(2, 3))  # within a bucket they are as far apart

    def arranged(y):
      """[B H S N] → [B H rounds chunks chunk N], each round in its own order."""
      y = jnp.broadcast_to(y, (B, H, *y.shape[2:]))
      y = jnp.take_along_axis(y, order.reshape(B, H, -1, 1), 2)
      return y.reshape(B, H, self.hashes, S // chunk, chunk, -1)

    def beside(y):
      """Each chunk between the one before and, where the mask looks ahead, the one after; zeros beyond."""
      ahead = int(self.looks_ahead(S))
      y = jnp.pad(y, [(0, 0)] * 3 + [(1, ahead)] + [(0, 0)] * 2)
      n = S // chunk
      return jnp.concatenate([y[:, :, :, i : i + n] for i in range(2 + ahead)], -2)

    queries = jax.tree.map(arranged, tokens)
    keys = jax.tree.map(beside, queries)
    # What an earlier round has found is left out, so that it counts once.
    found = self.near(queries, keys)
    here = jnp.arange(self.hashes).reshape(1, 1, -1, 1, 1, 1)
    new = functools.reduce(operator.or_, [(here == r) & found[r] for r in range(self.hashes)])
    old = functools.reduce(operator.or_, [(here > r) & found[r] for r in range(self.hashes)])
    y, log_sum_exp = self.attend(queries, keys, new & ~old, dropped)
    y = jnp.take_along_axis(y.reshape(B, H, self.hashes, S, -1), places[..., None], 3)
    log_sum_exp = jnp.take_along_axis(log_sum_exp.reshape(B, H, self.hashes, S), places, 3)
    shares = jax.nn.softmax(log_sum_exp, axis=2)[..., None]
    return (shares * y).sum(2).astype(y.dtype)[:, :, :T]

  def near(self, q, k):
    """For each round: whether both are in one bucket and less than a chunk apart there, [... T S]."""

    def pairs(of, r):
      return getattr(q, of)[..., r, None], getattr(k, of)[..., None, :, r]

    for_round = []
    for r in range(self.hashes):
      (q_bucket, k_bucket), (q_rank, k_rank) = pairs('buckets', r), pairs('ranks', r)
      for_round.append((q_bucket == k_bucket) & (abs(q_rank - k_rank) < self.chunk))
    return for_round

  def attend(self, q, k, near, dropped):
    """softmax(q · k / |k|) v over the near keys that are seen, and log Σ exp of those logits."""

    def keys(y):
      return y.swapaxes(-1, -2)

    mask = self.mask.bind_prefix(None if k.prefix is None else keys(k.prefix))
    seen = near & mask(q.positions, keys(k.positions)) & together(q, k)
    logits = jnp.einsum('...TC,...SC->...TS', q.x, k.x, preferred_element_type=jnp.float32)
    square = jnp.square(k.x.astype(jnp.float32)).mean(-1, keepdims=True)
    logits = logits * keys(jax.lax.rsqrt((square + 1e-6) * self.head_width))
    logits = jnp.where(q.positions == keys(k.positions), ITSELF, logits)
    logits = jnp.where(seen, logits, UNSEEN)
    log_sum_exp = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    weights = jnp.where(seen.any(-1, keepdims=True), jnp.exp(logits - log_sum_exp), 0)
    if dropped is not None:
      kept = jax.random.bernoulli(dropped, 1 - self.dropout, weights.shape)
      weights = jnp.where(kept, weights / (1 - self.dropout), 0)
    return jnp.einsum('...TS,...SC->...TC', weights.astype(k.v.dtype), k.v), log_sum_exp[..., 0]

  def looks_ahead(self, length):
    """Whether the mask may show a token a later one; False only if that is sure."""
    return not self.mask.relative or bool(np.any(self.mask(np.zeros(length, int), np.arange(1, length + 1))))


@struct.dataclass
class Tokens:
  """Tokens side by side, in whatever arrangement: all that attention among them wants to know.

  Attributes:
    x: queries, which are keys; v: values.
    buckets, ranks: for each round of hashing; of ranks only differences within a bucket count.
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
    """Of arrays [B H T …] and of what holds positions, segments and prefix [B T]."""
    rows = context.positions, context.segments, context.prefix
    return cls(x, v, buckets, ranks, *(None if row is None else row[:, None, :, None] for row in rows))

  def padded(self, n: int) -> 'Tokens':
    """With n tokens of padding at the end."""
    return jax.tree.map(lambda y: jnp.pad(y, ((0, 0), (0, 0), (0, n), (0, 0))), self)


def together(q: Tokens, k: Tokens) -> Bool[Array, '... T S']:
  """Whether both stand in one document."""
  k_segments = k.segments.swapaxes(-1, -2)
  return (q.segments == k_segments) & (k_segments != 0)


def before(q: Tokens, k: Tokens) -> Int[Array, 'B H T N']:
  """How many of the keys stand before each query in its document and bucket, for each round."""
  earlier = together(q, k) & (k.positions.swapaxes(-1, -2) < q.positions)
  found = q.buckets[..., :, None, :] == k.buckets[..., None, :, :]
  return (earlier[..., None] & found).sum(-2)


def rotations(seed: int, heads: int, head_width: int, hashes: int, buckets: int) -> Float[Array, 'H C N F']:
  """The random directions of every head and round, half as many as buckets."""
  draw = np.random.default_rng(seed)
  return jnp.asarray(draw.standard_normal((heads, head_width, hashes, buckets // 2)), jnp.float32)


def hashed(x: Float[Array, 'B T H C'], rotations: Float[Array, 'H C N F']) -> Int[Array, 'B T H N']:
  """Of the directions and their opposites the nearest, for each round (Andoni et al. 2015; §2, "LSH")."""
  # As exact as can be, for a token must fall into the same bucket whatever is computed beside it.
  x = jax.lax.stop_gradient(x).astype(jnp.float32)
  along = jnp.einsum('BTHC,HCNF->BTHNF', x, rotations, precision=jax.lax.Precision.HIGHEST)
  return jnp.argmax(jnp.concatenate([along, -along], -1), -1).astype(jnp.int32)


def bucket_order(tokens: Tokens) -> tuple[Int[Array, 'B H N T'], Int[Array, 'B H N T']]:
  """Which token is at each place, sorted by document, bucket and position; and the place of each token."""
  buckets = tokens.buckets.swapaxes(2, 3)

  def row(y):
    return jnp.broadcast_to(y.swapaxes(2, 3), buckets.shape)

  index = jnp.broadcast_to(jnp.arange(buckets.shape[-1]), buckets.shape)
  order = jax.lax.sort((row(tokens.segments), buckets, row(tokens.positions), index), num_keys=3)[-1]
  return order, jnp.argsort(order, axis=-1)
