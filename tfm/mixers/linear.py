"""Linear attention: a feature map instead of the softmax, so that a state of one size holds the past."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm import spec
from tfm.mixers._chunks import Runs, join_chunks, reverse_time, split_chunks
from tfm.mixers._feature_maps import FEATURE_MAPS, FeatureMap
from tfm.mixers._head_projections import project_from_heads, project_to_heads
from tfm.mixers._recurrence import WITHOUT_KERNELS, Pallas, build_recurrence
from tfm.mixers._state_space import find_document_starts
from tfm.mixers.protocol import Mixer
from tfm.parallel.sequence_parallelism import scan_over_sequence_shards
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float, Int
from tfm.spec import Size


@struct.dataclass
class Cache:
  """Σ φ(k) vᵀ and Σ φ(k) over the last document of each row, and which one that is (0: none yet)."""

  state: Float[Array, 'B K F C2']
  normalizer: Float[Array, 'B K F 1']
  segment: Int[Array, 'B']


class LinearAttention(Mixer):
  """Attention whose weights are products of features (Katharopoulos et al. 2020, eqs. 4-12).

    y_t = Σ_s (φ(q_t)·φ(k_s)) v_s / Σ_s φ(q_t)·φ(k_s),  over s ≤ t or all s

  Within a chunk the weights are computed; earlier chunks are read from a state, in float32. So time and
  memory are linear in the length. The full mask reads a second state, accumulated from the end. Query heads
  of a group share the state of their key head.

  A position rotates φ(q) and φ(k) in the numerator alone (Su et al. 2021, RoFormer, eq. 19): the
  denominator stays a sum of nonnegative numbers. 1e-6 is added to it, as a query may see no key.

  Attributes:
    position: factory of this layer's own instance; mask: shared, stateless.
    feature_map: φ: 'elu', 'relu', 'softmax', 'cosformer(length)' or 'favor(features, seed)', of
      `tfm/mixers/_feature_maps.py`.
    chunk: tokens whose weights are computed at once; it affects the speed only.
    recurrence: 'chunks', which XLA computes, or 'pallas(block=64)', kernels for TPUs and GPUs, of
      `tfm/mixers/_recurrence.py`. A single token is read without them.

  Raises (from `validate`):
    ValueError: for an unknown feature map or recurrence, a chunk below 1, or dropout, as the weights of most
      pairs are never computed.
  """

  position: Callable
  mask: Callable
  feature_map: str = 'elu'
  chunk: Size = 64
  recurrence: str = 'chunks'

  examples = (
    'linear(chunk=5)',
    'linear(feature_map="softmax")',
    'linear(feature_map="cosformer(length=12)")',
    'linear(feature_map="favor(features=8)", chunk=5)',
    'linear(recurrence="pallas(16, interpret=True)")',
  )
  supported_masks = ('causal', 'full')
  without_kernels = WITHOUT_KERNELS
  position_hooks = frozenset({'rotate'})

  def validate(self):
    self.position(head_width=self.position_width, parent=None).validate()
    build_recurrence(self.recurrence)
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, which linear attention does '
        'not compute for all pairs; use 0, or dropout.residual'
      )

  @property
  def features(self) -> FeatureMap:
    """φ."""
    return spec.build_from_table(self.feature_map, FEATURE_MAPS)

  @property
  def position_width(self):
    return self.features.width(self.head_width)

  @property
  def causal(self) -> bool:
    """Whether the mask hides later tokens."""
    return not self.mask(0, 1)

  @nn.nowrap
  def init_cache(self, batch, length):
    self.require_causal()
    return self.empty(batch)

  @nn.nowrap
  def require_causal(self):
    """Raises ValueError if tokens cannot be decoded one by one."""
    if not self.causal:
      raise ValueError(
        "mixer='linear' cannot decode under a noncausal mask, as every token changes "
        "the output of earlier ones; use mask='causal'"
      )

  @nn.nowrap
  def empty(self, batch: int) -> Cache:
    """The cache before the first token."""

    def zeros(channels):
      return shard(
        jnp.zeros((batch, self.kv_heads, self.position_width, channels), jnp.float32),
        'batch',
        'kv_heads',
        'state',
        'kv' if channels > 1 else None,
      )

    return Cache(zeros(self.head_width), zeros(1), jnp.zeros(batch, jnp.int32))

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    if cache is not None:
      self.require_causal()
    before = self.empty(len(x)) if cache is None else cache
    real = (context.segments != 0)[:, :, None, None]
    q, k = (
      self.features(
        project_to_heads(self, name, axis, x).astype(jnp.float32), context.positions, is_query=name == 'q'
      ).astype(self.dtype)
      for name, axis in (('q', 'heads'), ('k', 'kv_heads'))
    )
    v = jnp.where(real, project_to_heads(self, 'v', 'kv_heads', x), 0)
    ones = jnp.broadcast_to(real, (*k.shape[:3], 1)).astype(v.dtype)
    position = self.position(head_width=self.position_width, name='position')
    rotated = position.rotate(q, k, context.positions, context.positions)
    with jax.named_scope('sums'):
      first, segment = find_document_starts(context.segments, before.segment)
      last = (
        None
        if self.causal
        else find_document_starts(context.segments[:, ::-1], jnp.zeros_like(segment))[0][:, ::-1]
      )
      state, y = self.accumulate(before.state, LinearRows(*rotated, v, first, last))
      normalizer, total = self.accumulate(before.normalizer, LinearRows(q, k, ones, first, last))
    y = shard((y / (total + 1e-6)).astype(self.dtype), 'batch', 'length', 'heads', 'kv')
    return project_from_heads(self, y), None if cache is None else Cache(state, normalizer, segment)

  def accumulate(self, state, rows):
    """`sum_over_keys` over rows that may be sharded along their length."""
    kernel = build_recurrence(self.recurrence)
    if kernel is not None and rows.q.shape[1] > 1:
      return sum_by_kernel(kernel, state, rows)
    if not self.causal:
      return sum_over_keys(state, rows, self.chunk)
    return scan_over_sequence_shards(
      lambda state, rows, _: sum_over_keys(state, rows, self.chunk), state, rows
    )


class LinearRows(NamedTuple):
  """What linear attention reads of each token.

  Attributes:
    q, k: features of queries and keys; v: values.
    first: whether the token is the first of its document; last: whether it is the last, None if causal.
  """

  q: Float[Array, 'B T H C']
  k: Float[Array, 'B T K C']
  v: Float[Array, 'B T K C2']
  first: Bool[Array, 'B T']
  last: Bool[Array, 'B T'] | None


def sum_over_keys(
  state: Float[Array, 'B K C C2'], rows: LinearRows, chunk: int
) -> tuple[Float[Array, 'B K C C2'], Float[Array, 'B T H C2']]:
  """The new state Σ k_s v_sᵀ of the last document, and Σ_s (q_t·k_s) v_s over the s of t's document, in
  float32.

  Without `rows.last`, s goes up to t alone.
  """
  q, k, v, first, last = rows
  T, K = k.shape[1:3]
  directions = [Runs.of(first, chunk)]
  if last is not None:
    directions.append(Runs.within(reverse_time(split_chunks(last[:, :, None], 1, chunk))))
  q, k, v = (split_chunks(x, K, chunk) for x in (q, k, v))
  weights = jnp.einsum('BNKGIC,BNKJC->BNKGIJ', q, k[:, :, :, 0], preferred_element_type=jnp.float32)
  visible = directions[0].together
  if len(directions) == 1:
    visible = visible & jnp.tril(jnp.ones(visible.shape[-2:], bool))[None, None, None, None]
  weights = jnp.where(visible, weights, 0).astype(v.dtype)
  y = jnp.einsum('BNKGIJ,BNKJE->BNKGIE', weights, v[:, :, :, 0], preferred_element_type=jnp.float32)
  read, state = read_before(q, k, v, directions[0], state)
  y = y + read
  for runs in directions[1:]:
    read, _ = read_before(*map(reverse_time, (q, k, v)), runs, jnp.zeros_like(state))
    y = y + reverse_time(read)
  return state, join_chunks(y, T)


def sum_by_kernel(
  kernel: Pallas, state: Float[Array, 'B K C C2'], rows: LinearRows
) -> tuple[Float[Array, 'B K C C2'], Float[Array, 'B T H C2']]:
  """`sum_over_keys` by a kernel for recurrences, in which nothing decays."""
  q, k, v, first, last = rows
  groups = q.shape[2] // k.shape[2]
  no_decay = jnp.zeros(q.shape[:3], jnp.float32)
  state = jnp.repeat(state, groups, 1)  # each query head keeps the state of its key head
  after, y = kernel(q, k, v, no_decay, first, state)
  if last is not None:
    backward = [jnp.flip(x, 1) for x in (q, k, v)]
    _, later = kernel(*backward, no_decay, jnp.flip(last, 1), jnp.zeros_like(state))
    # Both directions count a token's own value.
    k, v = (jnp.repeat(x, groups, 2) for x in (k, v))
    own = jnp.einsum('BTHC,BTHC->BTH', q, k, preferred_element_type=jnp.float32)
    y = y + jnp.flip(later, 1) - own[..., None] * v
  return after[:, ::groups], y


def read_before(q, k, v, runs, state):
  """The contribution of earlier chunks to each token, and the state after the last chunk."""
  leaving = jnp.where(runs.leaving[..., None], v, 0)[:, :, :, 0]
  added = jnp.einsum('BNKJC,BNKJE->NBKCE', k[:, :, :, 0], leaving, preferred_element_type=jnp.float32)

  def step(state, chunk):
    through, added = chunk
    return jnp.where(through[..., None], state, 0) + added, state

  state, before = jax.lax.scan(step, state, (runs.through.swapaxes(0, 1), added))
  y = jnp.einsum('BNKGIC,NBKCE->BNKGIE', q, before, preferred_element_type=jnp.float32)
  return jnp.where(runs.entering[..., None], y, 0), state
