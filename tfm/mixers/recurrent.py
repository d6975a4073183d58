"""Recurrent networks, LSTM and GRU: what the Transformer replaced."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from tfm.errors import suggest
from tfm.layers.initializer import zeros
from tfm.layers.linear import Linear
from tfm.mixers.protocol import Mixer
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.shapes import Array, Float, Int
from tfm.spec import Size


State = tuple[Float[Array, 'B F'], ...]

# Added to the logits of the LSTM's forget gate, as if its bias started from 1, with biases or without
# (Gers et al. 2000; Jozefowicz et al. 2015, §4).
FORGET_BIAS = 1.0


@struct.dataclass
class Cache:
  """The state of a cell for each row, h first, in float32, and its document; 0: none yet."""

  state: State
  segment: Int[Array, 'B']


class Recurrent(Mixer):
  """One recurrent layer over the tokens of a document, then a projection of its hidden states.

    h_t, … = cell(W x_t + b, U h_{t-1} + b', …)          y_t = V h_t

  The cells are `CELLS`. W x_t is one product for all tokens; U h_{t-1} is one product per token, and the only
  sequential work. The state is in float32. It is reset at the first token of a document; padding leaves it
  unchanged. The model's heads, kv_heads and head_width describe attention: there are no heads here. b'
  belongs to the gates with a recurrent bias; F below is `hidden`.

  Attributes:
    cell: 'lstm' or 'gru'.
    hidden: channels of the hidden state; None: the model width.

  Raises (from `validate`):
    ValueError: for an unknown cell, hidden below 1, or dropout, as there are no mixing weights to drop.
  """

  cell: str = 'lstm'
  hidden: Size | None = None

  examples = ('recurrent', 'recurrent("gru", hidden=24)')
  supported_masks = ('causal',)
  supports_grouped_heads = False

  def validate(self):
    if self.cell not in CELLS:
      raise ValueError(f'cell={self.cell!r} is unknown; {suggest(self.cell, CELLS)}')
    if self.dropout > 0:
      raise ValueError(
        f'dropout.attention={self.dropout} drops mixing weights, which a recurrent network '
        'does not have; use 0, or dropout.residual'
      )

  @property
  def channels(self):
    return self.width if self.hidden is None else self.hidden

  @nn.nowrap
  def init_cache(self, batch, length):
    empty = shard(jnp.zeros((batch, self.channels), jnp.float32), 'batch', 'mlp')
    return Cache((empty,) * CELLS[self.cell].states, shard(jnp.zeros(batch, jnp.int32), 'batch'))

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    cell, F = CELLS[self.cell], self.channels
    # Gates are the last axis of both, so that sharding the channels keeps the gates of a channel together.
    W = Linear(
      (self.width, F, cell.gates),
      ('embed', 'mlp', 'gates'),
      self.initializer,
      bias=self.bias,
      dtype=self.dtype,
      name='input',
    )
    U = self.param(
      'recurrent',
      with_logical_axes(self.initializer((0,), (1, 2)), ('embed', 'mlp', 'gates')),
      (F, F, cell.gates),
      jnp.float32,
    )
    # Columns that fsdp shards are gathered once, not again for every token.
    U = shard(U.astype(self.dtype).swapaxes(1, 2), None, 'gates', 'mlp')
    x = shard(W(x).transpose(1, 0, 3, 2), 'length', 'batch', 'gates', 'mlp')
    inner = jnp.zeros((cell.gates, F), jnp.float32)
    if self.bias and cell.inner:
      b = self.param(
        'recurrent_bias', with_logical_axes(zeros, ('mlp', 'gates')), (F, cell.inner), jnp.float32
      )
      inner = inner.at[-cell.inner :].set(b.T)
    with jax.named_scope('scan'):
      before = self.init_cache(x.shape[1], 0) if cache is None else cache
      inner = jnp.broadcast_to(inner[None, None], x.shape)
      after, h = recur(cell, U, x, inner, context.segments.T, before)
    y = Linear(
      (F, self.width), ('mlp', 'embed'), self.output_initializer, bias=self.bias, dtype=self.dtype, name='out'
    )(shard(h.swapaxes(0, 1), 'batch', 'length', 'mlp'))
    return shard(y, 'batch', 'length', 'embed'), None if cache is None else after


def lstm(
  x: Float[Array, 'B 4 F'], u: Float[Array, 'B 4 F'], h: Float[Array, 'B F'], c: Float[Array, 'B F']
) -> State:
  """Long short-term memory (Hochreiter & Schmidhuber 1997) with forget gates (Gers et al. 2000).

  i, f, g, o = x + u        c' = σ(f + 1) ⊙ c + σ(i) ⊙ tanh(g)        h' = σ(o) ⊙ tanh(c')
  """
  i, f, g, o = (x + u).swapaxes(0, 1)
  c = nn.sigmoid(f + FORGET_BIAS) * c + nn.sigmoid(i) * jnp.tanh(g)
  return nn.sigmoid(o) * jnp.tanh(c), c


def gru(x: Float[Array, 'B 3 F'], u: Float[Array, 'B 3 F'], h: Float[Array, 'B F']) -> State:
  """Gated recurrent unit (Cho et al. 2014, §2.3), resetting after the product and not before it.

    r, z = σ(x + u) of the first two        n = tanh(x₃ + r ⊙ u₃)        h' = (1 - z) ⊙ n + z ⊙ h

  The paper's n = tanh(x₃ + U₃ (r ⊙ h)) needs a second product that waits for the first; this is the
  variant of cuDNN and PyTorch, with a bias of its own in u₃.
  """
  r, z = nn.sigmoid(x[:, :2] + u[:, :2]).swapaxes(0, 1)
  n = jnp.tanh(x[:, 2] + r * u[:, 2])
  return ((1 - z) * n + z * h,)


@dataclasses.dataclass(frozen=True)
class Cell:
  """A kind of recurrence.

  Attributes:
    advance: (x, u, *state) → state after a token; x and u `[B gates F]` come from the token and from h.
    gates: products of F channels of x and of h; states: arrays `[B F]` of its state, h first.
    inner: how many of the last gates have a bias on u; for the others the bias on x is equivalent.
  """

  advance: Callable[..., State]
  gates: int
  states: int
  inner: int


CELLS = {'lstm': Cell(lstm, 4, 2, 0), 'gru': Cell(gru, 3, 1, 1)}


def scan(cell, U, x, inner, segments, before):
  """The result of `recur`, and the h that is multiplied by U at every token."""

  def step(before, token):
    x, inner, segment = token
    real = segment > 0
    first = real & (segment != before.segment)
    state = jax.tree.map(lambda s: jnp.where(first[:, None], 0, s), before.state)
    h = state[0].astype(U.dtype)
    u = jnp.einsum('BE,EnF->BnF', h, U, preferred_element_type=jnp.float32) + inner
    after = cell.advance(x.astype(jnp.float32), u, *state)
    after = jax.tree.map(
      lambda new, old: shard(jnp.where(real[:, None], new, old), 'batch', 'mlp'), after, state
    )
    return Cache(after, jnp.where(real, segment, before.segment)), (after[0].astype(U.dtype), h)

  after, (h, h_before) = jax.lax.scan(step, before, (x, inner, segments))
  return (after, h), h_before


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def recur(
  cell: Cell,
  U: Float[Array, 'F n F'],
  x: Float[Array, 'T B n F'],
  inner: Float[Array, 'T B n F'],
  segments: Int[Array, 'T B'],
  before: Cache,
) -> tuple[Cache, Float[Array, 'T B F']]:
  """The last state, and h of every token; `inner` is added to U h.

  The gradient of U is one product over all tokens. Left to the loop it would be a sum that is read and
  written, and on a mesh reduced over its devices, for every token.
  """
  return scan(cell, U, x, inner, segments, before)[0]


def recur_forward(cell, U, x, inner, segments, before):
  def run(x, inner, state):
    (after, h), h_before = scan(cell, U, x, inner, segments, before.replace(state=state))
    return (after.state, h), (after.segment, h_before)

  (state, h), back, (segment, h_before) = jax.vjp(run, x, inner, before.state, has_aux=True)
  return (Cache(state, segment), h), (back, h_before)


def recur_backward(cell, residuals, gradients):
  (back, h_before), (after, h) = residuals, gradients
  x, inner, state = back((after.state, h))
  U = jnp.einsum('TBE,TBnF->EnF', h_before, inner.astype(h_before.dtype))
  return U, x, inner, None, Cache(state, None)


recur.defvjp(recur_forward, recur_backward)
