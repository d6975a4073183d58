"""Gated DeltaNet: a linear-attention state with decay, whose update corrects the value stored for a key."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.layers.causal_convolution import CausalConvolution, Window
from tfm.layers.linear import Linear
from tfm.mixers._chunks import Runs, join_chunks, split_chunks
from tfm.mixers._head_projections import project_from_heads, project_to_heads, unit
from tfm.mixers._recurrence import WITHOUT_KERNELS, Pallas, build_recurrence
from tfm.mixers._state_space import LOG_RATES, find_document_starts, segment_sums, step_bias
from tfm.mixers._triangular import solve
from tfm.mixers.protocol import Mixer
from tfm.norms.rmsnorm import RMSNorm
from tfm.parallel.sequence_parallelism import scan_over_sequence_shards
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Bool, Float, Int
from tfm.spec import Size


@struct.dataclass
class Cache:
  """The state of each row's last document, which one that is (0: none yet), and what the convolutions see."""

  state: Float[Array, 'B H C C']
  segment: Int[Array, 'B']
  windows: dict[str, Window]


class GatedDelta(Mixer):
  """Linear attention by the gated delta rule (Yang, Kautz & Hatamizadeh 2024, Gated Delta Networks, eq. 10).

    q, k, v = silu(convolution(W x)), q and k of unit length, q over √C
    α_t = exp(-exp(A_log) softplus(W_α x_t + dt_bias))      β_t = sigmoid(W_β x_t)
    S_t = S_{t-1} (α_t (I - β_t k_t k_tᵀ)) + β_t v_t k_tᵀ   y_t = S_t q_t
    out = W_out (rmsnorm(y) ⊙ silu(W_gate x))

  α is that of Mamba-2 (Dao & Gu 2024), the layer that of §3.4 and fig. 1. There are H states, one per value
  head; groups of them share the kv_heads heads of queries and keys (as in Qwen3-Next). The state is reset at
  the first token of a document; padding has α = 1, β = 0, which leaves it unchanged.

  Attributes:
    taps: of the convolutions, in tokens; 1: they do not mix tokens.
    chunk: tokens whose corrections are solved for at once; it affects the speed only.
    recurrence: 'chunks', which XLA computes, or 'pallas(block=64)', kernels for TPUs and GPUs, of
      `tfm/mixers/_recurrence.py`, with a block as the chunk. A single token is read without them.

  Raises (from `validate`):
    ValueError: for taps or a chunk below 1, an unknown recurrence, or dropout, as there are no mixing weights
      to drop.
  """

  taps: Size = 4
  chunk: Size = 64
  recurrence: str = 'chunks'

  examples = ('gated_delta(chunk=5)', 'gated_delta(recurrence="pallas(16, interpret=True)")')
  supported_masks = ('causal',)
  without_kernels = WITHOUT_KERNELS

  def validate(self):
    build_recurrence(self.recurrence)
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, which the delta rule does not '
        'have; use 0, or dropout.residual'
      )

  @nn.nowrap
  def init_cache(self, batch, length):
    state = jnp.zeros((batch, self.heads, self.head_width, self.head_width), jnp.float32)
    windows = {
      name: Window.empty((batch, self.taps - 1, heads, self.head_width), (axis, 'kv'), self.dtype)
      for name, axis, heads in self.convolved_heads()
    }
    return Cache(shard(state, 'batch', 'heads', 'state', 'kv'), jnp.zeros(batch, jnp.int32), windows)

  @nn.nowrap
  def convolved_heads(self):
    """(name, logical axis, heads) of each projection that is convolved."""
    return ('q', 'kv_heads', self.kv_heads), ('k', 'kv_heads', self.kv_heads), ('v', 'heads', self.heads)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    before = self.init_cache(len(x), 0) if cache is None else cache
    convolutions, windows = {}, {}
    for name, axis, heads in self.convolved_heads():
      convolution = CausalConvolution(
        (heads, self.head_width),
        (axis, 'kv'),
        self.taps,
        bias=False,
        dtype=self.dtype,
        name=f'{name}_convolution',
      )
      y, windows[name] = convolution(
        project_to_heads(self, name, axis, x),
        context.segments,
        None if cache is None else cache.windows[name],
        unbroken=cache is None and context.layout != 'arbitrary',
      )
      convolutions[name] = nn.silu(y.astype(jnp.float32))
    q, k = unit(convolutions['q']) * self.head_width**-0.5, unit(convolutions['k'])
    first, segment = find_document_starts(context.segments, before.segment)
    with jax.named_scope('delta_rule'):
      rows = DeltaRows(q, k, convolutions['v'], *self.rates(x, context.segments != 0), first)
      state, y = self.scan(before.state, rows)
    y = RMSNorm(axis='kv', name='norm')(shard(y, 'batch', 'length', 'heads', 'kv'))
    y = y * nn.silu(project_to_heads(self, 'gate', 'heads', x).astype(jnp.float32))
    return project_from_heads(self, y), None if cache is None else Cache(state, segment, windows)

  @nn.nowrap
  def scan(self, state, rows):
    """The state after the rows, and the output of each token."""
    kernel = build_recurrence(self.recurrence)
    if kernel is not None and rows.q.shape[1] > 1:
      return delta_rule_by_kernel(kernel, rows, state)
    return scan_over_sequence_shards(
      lambda state, rows, _: delta_rule(rows, state, self.chunk)[::-1],
      state,
      rows,
      unit=identity,
      act=jnp.matmul,
    )

  def rates(self, x, real):
    """log α and β of every token and head, in float32; 0 for padding."""

    def rate(name, bias):
      y = Linear(
        (self.width, self.heads), ('embed', 'heads'), self.initializer, bias=bias, dtype=self.dtype, name=name
      )(x)
      return shard(y, 'batch', 'length', 'heads').astype(jnp.float32)

    scale = self.param('A_log', with_logical_axes(LOG_RATES, ('heads',)), (self.heads,), jnp.float32)
    bias = self.param('dt_bias', with_logical_axes(step_bias(), ('heads',)), (self.heads,), jnp.float32)
    log_decay = -jnp.exp(scale)[None, None] * nn.softplus(rate('alpha', bias=False) + bias[None, None])
    return (jnp.where(real[..., None], y, 0) for y in (log_decay, nn.sigmoid(rate('beta', bias=self.bias))))


class DeltaRows(NamedTuple):
  """What the gated delta rule reads of each token.

  Attributes:
    q, k, v: queries, keys of length one, values.
    log_decay, beta: log α and β; 0 for padding.
    first: whether the token is the first of its document.
  """

  q: Float[Array, 'B T K C']
  k: Float[Array, 'B T K C']
  v: Float[Array, 'B T H C2']
  log_decay: Float[Array, 'B T H']
  beta: Float[Array, 'B T H']
  first: Bool[Array, 'B T']


def delta_rule(
  rows: DeltaRows, state: Float[Array, 'B H C C2'], chunk: int
) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B H C C2']]:
  """S_t q_t of the gated delta rule, and the last state, by chunks, in float32 (Yang et al. 2024, §3.3).

  A token adds k_t u_tᵀ to the (transposed) state, with the correction

    u_i = β_i (v_i - γ_i S₀ᵀ k_i - Σ_{j<i} γ_ij (k_i·k_j) u_j),

  γ_i the decay since the chunk began and γ_ij since token j. So the corrections of a chunk solve
  one unit triangular system, for v and for k at once, and only then read the state S₀ before it.
  """
  T, K = rows.k.shape[1:3]
  q, k, log_decay = (split_chunks(x, K, chunk) for x in (rows.q, rows.k, rows.log_decay))
  runs, decay = Runs.of(rows.first, chunk), jnp.exp(segment_sums(log_decay))
  decay_from_start = jnp.exp(jnp.cumsum(log_decay, -1))
  entering = jnp.where(runs.entering, decay_from_start, 0)[..., None]
  leaving = jnp.where(runs.leaving, decay[..., -1, :], 0)[..., None]
  through = jnp.where(runs.through, decay_from_start[..., -1], 0)[..., None, None]
  u, w = solve_corrections(rows, chunk)

  def step(state, chunk):
    u, w, keys, through = chunk
    u = u - jnp.einsum('BKGIC,BKGCE->BKGIE', w, state)
    return through * state + jnp.einsum('BKGJC,BKGJE->BKGCE', keys, u), (state, u)

  shape = state.shape
  state, (states, u) = jax.lax.scan(
    step,
    state.reshape(len(state), K, -1, *shape[2:]),
    jax.tree.map(lambda x: x.swapaxes(0, 1), (u, w, leaving * k, through)),
  )
  visible = jnp.tril(jnp.ones(decay.shape[-2:], bool))[None, None, None, None]
  inclusive_decay = jnp.where(runs.together & visible, decay, 0)
  weights = inclusive_decay * jnp.einsum('BNKGIC,BNKGJC->BNKGIJ', q, k)
  y = jnp.einsum('BNKGIJ,NBKGJE->BNKGIE', weights, u) + jnp.einsum(
    'BNKGIC,NBKGCE->BNKGIE', entering * q, states
  )
  return join_chunks(y, T), state.reshape(shape)


def solve_corrections(
  rows: DeltaRows, chunk: int
) -> tuple[Float[Array, 'B N K G I C2'], Float[Array, 'B N K G I C']]:
  """u and w, such that the corrections of a chunk are u - w S₀ with the state S₀ before it."""
  K = rows.k.shape[2]
  k, v, log_decay, beta = (split_chunks(x, K, chunk) for x in rows[1:5])
  runs, beta = Runs.of(rows.first, chunk), beta[..., None]
  later = jnp.tril(jnp.ones((k.shape[-2],) * 2, bool), -1)[None, None, None, None]
  decay = jnp.where(runs.together & later, jnp.exp(segment_sums(log_decay)), 0)
  entering = jnp.where(runs.entering, jnp.exp(jnp.cumsum(log_decay, -1)), 0)[..., None]
  system = beta * decay * jnp.einsum('BNKGIC,BNKGJC->BNKGIJ', k, k)
  solution = solve(system, jnp.concatenate([beta * v, beta * entering * k], -1))
  return tuple(jnp.split(solution, [v.shape[-1]], -1))


def delta_rule_by_kernel(
  kernel: Pallas, rows: DeltaRows, state: Float[Array, 'B H C C2']
) -> tuple[Float[Array, 'B H C C2'], Float[Array, 'B T H C2']]:
  """The last state and the outputs of `delta_rule`: the corrections are the values of a linear recurrence."""
  T, block = rows.k.shape[1], kernel.block
  # Whole blocks, so that they are the chunks.
  rows = DeltaRows(*(jnp.pad(x, ((0, 0), (0, -T % block), *((0, 0),) * (x.ndim - 2))) for x in rows))
  u, w = (join_chunks(x, rows.k.shape[1]) for x in solve_corrections(rows, block))
  state, y = kernel(rows.q, rows.k, u, rows.log_decay, rows.first, state, w)
  return state, y[:, :T]


def identity(state: Float[Array, 'B H C C']) -> Float[Array, 'B H C C']:
  """The state that another, multiplied from the left, leaves itself."""
  return jnp.broadcast_to(jnp.eye(state.shape[-1], dtype=state.dtype), state.shape)
