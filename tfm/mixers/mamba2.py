"""Mamba-2: a state space with one decay for each head, as matrix products over chunks."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.layers.causal_convolution import CausalConvolution, Window
from tfm.layers.initializer import ones
from tfm.layers.linear import Linear
from tfm.mixers._recurrence import WITHOUT_KERNELS, build_recurrence
from tfm.mixers._state_space import LOG_RATES, find_document_starts, scan_chunks, segment_sums, step_bias
from tfm.mixers.protocol import Mixer
from tfm.parallel.sequence_parallelism import scan_over_sequence_shards
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Float, Int
from tfm.spec import Epsilon, Size


@struct.dataclass
class Cache:
  """The state of each row, its document (0: none yet), and the convolutions' last inputs."""

  windows: dict[str, Window]
  state: Float[Array, 'B K G C state']
  segment: Int[Array, 'B']


class Mamba2(Mixer):
  """The state space dual to a masked attention (Dao & Gu 2024, §6, listing 1; the block of §7.1, fig. 6).

    x, B, C ← silu(convolution(W_x input, W_B input, W_C input))     z = W_z input
    Δ_t = softplus(W_Δ input_t + b_Δ)                                A = -exp(A_log)
    h_t = exp(Δ_t A) h_{t-1} + Δ_t x_t B_tᵀ                          y_t = h_t C_t + D x_t
    out = W_out RMSNorm(y ⊙ silu(z))

  There are expand · heads heads of head_width channels, each with one A, Δ, D and a state [C, state]. B and C
  are shared by the heads of each of the kv_heads groups, as keys and queries are by value heads x; the
  published models have kv_heads = 1. The norm is over the channels of a group. Within a chunk y = (L ⊙ C Bᵀ)
  Δx, where L_ts = exp(Σ_{s<r≤t} Δ_r A) for s ≤ t in one document; from chunk to chunk goes the state. The
  state is reset at the first token of a document; padding has Δ = 0, which leaves it unchanged. States,
  decays and sums are in float32.

  Attributes:
    state: numbers held for each channel; expand: heads for each of the model's.
    taps: of the convolutions, in tokens.
    chunk: tokens per matrix product.
    epsilon: of the norm.
    convolution_bias: whether the convolutions have a bias, independently of the projections.
    recurrence: 'chunks', which XLA computes, or 'pallas(block=64)', kernels for TPUs and GPUs, of
      `tfm/mixers/_recurrence.py`. A single token is read without them.

  Raises (from `validate`):
    ValueError: for a size below 1, an unknown recurrence, or dropout, which the published block has none of.
  """

  state: Size = 64
  expand: Size = 2
  taps: Size = 4
  chunk: Size = 128
  epsilon: Epsilon = 1e-5
  convolution_bias: bool = True
  recurrence: str = 'chunks'

  # A large epsilon: over the few channels of a test's group the norm would amplify rounding errors.
  examples = (
    'mamba2(state=8, chunk=5, epsilon=0.1)',
    'mamba2(state=8, epsilon=0.1, recurrence="pallas(16, interpret=True)")',
  )
  supported_masks = ('causal',)
  without_kernels = WITHOUT_KERNELS

  def validate(self):
    build_recurrence(self.recurrence)
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, which a state space does not '
        'have; use 0, or dropout.residual'
      )

  @nn.nowrap
  def convolved_shapes(self):
    """Name → (shape of a token, its axes) of the projections that are convolved and then mixed."""
    heads = (self.expand * self.heads, self.head_width), ('heads', 'kv')
    group = (self.kv_heads, self.state), ('kv_heads', 'state')
    return {'x': heads, 'B': group, 'C': group}

  @nn.nowrap
  def init_cache(self, batch, length):
    K, G = self.kv_heads, self.expand * self.heads // self.kv_heads
    state = jnp.zeros((batch, K, G, self.head_width, self.state), jnp.float32)
    windows = {
      name: Window.empty((batch, self.taps - 1, *shape), axes, self.dtype)
      for name, (shape, axes) in self.convolved_shapes().items()
    }
    return Cache(windows, shard(state, 'batch', 'kv_heads', None, 'kv', 'state'), jnp.zeros(batch, jnp.int32))

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    before = self.init_cache(len(x), 0) if cache is None else cache
    heads, axes = self.convolved_shapes()['x']
    z, delta = self.project_in('z', heads, axes, x), self.project_in('dt', heads[:1], axes[:1], x)
    convolutions, windows = {}, {}
    for name, (shape, names) in self.convolved_shapes().items():
      convolution = CausalConvolution(
        shape, names, self.taps, bias=self.convolution_bias, dtype=self.dtype, name=f'{name}_convolution'
      )
      y, windows[name] = convolution(
        self.project_in(name, shape, names, x),
        context.segments,
        None if cache is None else cache.windows[name],
        unbroken=cache is None and context.layout != 'arbitrary',
      )
      convolutions[name] = nn.silu(y)

    def vector(name, initializer):
      return self.param(name, with_logical_axes(initializer, ('heads',)), heads[:1], jnp.float32)

    delta = nn.softplus(delta.astype(jnp.float32) + vector('dt_bias', step_bias())[None, None])
    delta = jnp.where(context.segments[..., None] > 0, delta, 0)
    decay = -jnp.exp(vector('A_log', LOG_RATES))[None, None] * delta
    first, segment = find_document_starts(context.segments, before.segment)
    group_shape = (*x.shape[:2], self.kv_heads, -1)
    inputs = dict(
      x=convolutions['x'].reshape(*group_shape, self.head_width),
      b=convolutions['B'],
      c=convolutions['C'],
      delta=delta.reshape(group_shape),
      decay=decay.reshape(group_shape),
      first=first,
    )
    with jax.named_scope('scan'):
      state, y = self.scan(before.state, inputs)
    y = shard(y.reshape(z.shape), 'batch', 'length', *axes)
    y = y + vector('D', ones)[None, None, :, None] * convolutions['x'].astype(jnp.float32)
    y = self.norm(y * nn.silu(z.astype(jnp.float32)))
    y = Linear(
      (*heads, self.width),
      (*axes, 'embed'),
      self.output_initializer,
      contracted_axes=2,
      bias=self.bias,
      dtype=self.dtype,
      name='out',
    )(y)
    return shard(y, 'batch', 'length', 'embed'), None if cache is None else Cache(windows, state, segment)

  def project_in(self, name, shape, axes, x):
    """One part of the input projection."""
    y = Linear(
      (self.width, *shape), ('embed', *axes), self.initializer, bias=self.bias, dtype=self.dtype, name=name
    )(x)
    return shard(y, 'batch', 'length', *axes)

  @nn.nowrap
  def scan(self, h, rows):
    """The state after the rows, and y of each token [B T K G C], from the state h [B K G C state] before."""
    kernel, (B, T, K, G, C) = build_recurrence(self.recurrence), rows['x'].shape
    if kernel is None or T == 1:
      return scan_over_sequence_shards(
        lambda h, rows, _: scan_chunks(self.step, h, rows, self.chunk), h, rows
      )
    x = (rows['delta'][..., None] * rows['x'].astype(jnp.float32)).astype(self.dtype)
    b, c = (rows[name].astype(self.dtype) for name in 'bc')
    state, y = kernel(
      c,
      b,
      x.reshape(B, T, K * G, C),
      rows['decay'].reshape(B, T, K * G),
      rows['first'],
      h.reshape(B, K * G, C, -1).swapaxes(2, 3),
    )
    return state.swapaxes(2, 3).reshape(h.shape), y.reshape(B, T, K, G, C)

  @nn.nowrap
  def step(self, h, chunk):
    """The state after a chunk of T tokens, and y of each, from the state h [B K G C state] before it."""

    def product(letters, *pair):
      return jnp.einsum(letters, *(x.astype(self.dtype) for x in pair), preferred_element_type=jnp.float32)

    b, c, document = chunk['b'], chunk['c'], jnp.cumsum(chunk['first'], 1)
    x = chunk['delta'][..., None] * chunk['x'].astype(jnp.float32)
    # L: how much of the input at s remains at t; nothing across document boundaries.
    together = jnp.tril(document[:, :, None] == document[:, None, :])[:, None, None]
    decay = jnp.exp(jnp.where(together, segment_sums(jnp.moveaxis(chunk['decay'], 1, -1)), -jnp.inf))
    y = product('BKGTS,BSKGC->BTKGC', decay * product('BTKN,BSKN->BKTS', c, b)[:, :, None], x)
    # And of the state before.
    carried_decay = jnp.where((document == 0)[..., None, None], jnp.exp(jnp.cumsum(chunk['decay'], 1)), 0)
    y = y + carried_decay[..., None] * product('BTKN,BKGCN->BTKGC', c, h)
    at_end = jnp.moveaxis(decay[..., -1, :], -1, 1)[..., None]
    return carried_decay[:, -1, ..., None, None] * h + product('BSKGC,BSKN->BKGCN', at_end * x, b), y

  def norm(self, y):
    """RMSNorm over the channels of each group (Dao & Gu 2024, §7.1), in float32."""
    scale = self.param('scale', with_logical_axes(ones, ('heads', 'kv')), y.shape[2:], jnp.float32)
    groups = y.reshape(*y.shape[:2], self.kv_heads, -1)
    groups = groups * jax.lax.rsqrt((groups * groups).mean(-1, keepdims=True) + self.epsilon)
    return (groups.reshape(y.shape) * scale[None, None]).astype(self.dtype)
