"""Mamba: a state space whose matrices depend on the input."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.layers.causal_convolution import CausalConvolution, Window
from tfm.layers.float32_gradients import einsum
from tfm.layers.initializer import Initializer, ones, uniform
from tfm.layers.linear import Linear
from tfm.mixers._selective_scan import scan_chunk
from tfm.mixers._state_space import find_document_starts, scan_chunks, step_bias
from tfm.mixers.protocol import Mixer
from tfm.parallel.sequence_parallelism import scan_over_sequence_shards
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Float, Int
from tfm.spec import Size


@struct.dataclass
class Cache:
  """The state of each row, its document (0: none yet), and the convolution's last inputs."""

  window: Window
  state: Float[Array, 'B inner state']
  segment: Int[Array, 'B']


class Mamba(Mixer):
  """The selective state space between a convolution and a gate (Gu & Dao 2023, alg. 2, §3.2-3.6, fig. 3).

    x, z = W_x input, W_z input           x ← silu(convolution(x))
    δ, B_t, C_t = W_(δBC) x_t             Δ_t = softplus(W_Δ δ + b_Δ)       A = -exp(A_log)
    h_t = exp(Δ_t A) ⊙ h_{t-1} + Δ_t B_t x_t          y_t = C_t · h_t + D ⊙ x_t
    out = W_out (y ⊙ silu(z))

  h has `state` numbers for each of the inner = expand · D channels; its decays and sums are in float32. The
  state is reset at the first token of a document; padding has Δ = 0, which leaves it unchanged. The model's
  heads and head_width describe attention: there are no heads here.

  Attributes:
    state: numbers held for each inner channel; expand: inner channels for each of D.
    taps: of the convolution, in tokens.
    rank: of the projection to Δ; None: D / 16, rounded up.
    chunk: tokens whose states exist at once.
    convolution_bias: whether the convolution has a bias, independently of the projections.

  Raises (from `validate`):
    ValueError: for a size below 1, or dropout, as there are no mixing weights to drop.
  """

  state: Size = 16
  expand: Size = 2
  taps: Size = 4
  rank: Size | None = None
  chunk: Size = 64
  convolution_bias: bool = True

  supported_masks = ('causal',)
  supports_grouped_heads = False

  def validate(self):
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, which a state space does not '
        'have; use 0, or dropout.residual'
      )

  @property
  def inner(self):
    return self.expand * self.width

  @nn.nowrap
  def init_cache(self, batch, length):
    state = jnp.zeros((batch, self.inner, self.state), jnp.float32)
    return Cache(
      Window.empty((batch, self.taps - 1, self.inner), ('mlp',), self.dtype),
      shard(state, 'batch', 'mlp', 'state'),
      jnp.zeros(batch, jnp.int32),
    )

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    before = self.init_cache(len(x), 0) if cache is None else cache
    x, z = self.project_in('x', x), self.project_in('z', x)
    convolution = CausalConvolution(
      (self.inner,), ('mlp',), self.taps, bias=self.convolution_bias, dtype=self.dtype, name='convolution'
    )
    x, window = convolution(
      x,
      context.segments,
      None if cache is None else cache.window,
      unbroken=cache is None and context.layout != 'arbitrary',
    )
    x = nn.silu(x)
    first, segment = find_document_starts(context.segments, before.segment)
    selected = self.select(x, context.segments > 0)
    with jax.named_scope('scan'):
      y, state = self.scan(x, *selected, first, before.state)
    y = (y * nn.silu(z.astype(jnp.float32))).astype(self.dtype)
    y = Linear(
      (self.inner, self.width),
      ('mlp', 'embed'),
      self.output_initializer,
      bias=self.bias,
      dtype=self.dtype,
      name='out',
    )(y)
    return shard(y, 'batch', 'length', 'embed'), None if cache is None else Cache(window, state, segment)

  def project_in(self, name, x):
    """Half of the input projection."""
    y = Linear(
      (self.width, self.inner),
      ('embed', 'mlp'),
      self.initializer,
      bias=self.bias,
      dtype=self.dtype,
      name=name,
    )(x)
    return shard(y, 'batch', 'length', 'mlp')

  def select(self, x, real):
    """Δ, B and C of every token, in float32; Δ = 0 for padding."""
    rank = -(-self.width // 16) if self.rank is None else self.rank
    down = self.param(
      'x_proj',
      with_logical_axes(self.initializer((0,), (1,)), ('mlp', 'state')),
      (self.inner, rank + 2 * self.state),
      jnp.float32,
    )
    up = self.param(
      'dt_proj',
      with_logical_axes(uniform(-(rank**-0.5), rank**-0.5), ('rank', 'mlp')),
      (rank, self.inner),
      jnp.float32,
    )
    bias = self.param('dt_bias', with_logical_axes(step_bias(), ('mlp',)), (self.inner,), jnp.float32)
    delta, b, c = jnp.split(einsum('BTE,ER->BTR', x, down), (rank, rank + self.state), -1)
    delta = einsum('BTR,RE->BTE', delta, up).astype(jnp.float32) + bias[None, None]
    delta = shard(jnp.where(real[..., None], nn.softplus(delta), 0), 'batch', 'length', 'mlp')
    return delta, b.astype(jnp.float32), c.astype(jnp.float32)

  def scan(self, x, delta, b, c, first, state):
    """y in float32, and the last state."""
    decays = self.param(
      'A_log', with_logical_axes(POLES, ('mlp', 'state')), (self.inner, self.state), jnp.float32
    )
    skip = self.param('D', with_logical_axes(ones, ('mlp',)), (self.inner,), jnp.float32)
    a = -jnp.exp(decays)

    def scan(state, rows, a):
      return scan_chunks(functools.partial(scan_chunk, a), state, rows, self.chunk)

    state, y = scan_over_sequence_shards(scan, state, (x, delta, b, c, first), a)
    return y + skip[None, None] * x.astype(jnp.float32), state


# -A is 1, 2, … for the state's numbers, the real part of S4D's (Gu et al. 2022; Gu & Dao 2023, §3.6).
POLES = Initializer(
  'log(1, 2, …)',
  lambda key, shape, dtype: jnp.broadcast_to(jnp.log(jnp.arange(1, shape[-1] + 1, dtype=dtype)), shape),
)
