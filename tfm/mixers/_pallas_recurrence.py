"""Linear recurrences with one decay a head, in Pallas: one kernel walks along the chunks of a row, one back.

They are written with what Pallas lowers to Mosaic for TPUs and to Triton for GPUs alike.

Letters beyond the glossary: N chunks of I tokens, as queries, or J, as keys; E channels of a value.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from tfm.errors import require
from tfm.layers import pallas
from tfm.layers.pallas import LANES, VMEM, matmul, pad_channels
from tfm.shapes import Array, Bool, Float, Int


class Operands(NamedTuple):
  """What the kernels read: rows padded to whole chunks, heads before length; what has no heads has one.

  q, k and v may have fewer heads than the state, which groups of its heads share then.

  Attributes:
    log_decay: of each token, a line a chunk.
    column, line: how many documents have begun in the chunk up to the token, in a column and in lines.
    state: before the row.
    read: what is taken from a value for each channel of the state before its chunk, or None.
  """

  q: Float[Array, 'B H T C']
  k: Float[Array, 'B H T C']
  v: Float[Array, 'B H T E']
  log_decay: Float[Array, 'B H N I']
  column: Int[Array, 'B 1 T 1']
  line: Int[Array, 'B 1 N I']
  state: Float[Array, 'B H C E']
  read: Float[Array, 'B H T C'] | None


# The operands that have gradients.
INPUTS = 'q', 'k', 'v', 'log_decay', 'state', 'read'


def scan_row(
  q: Float[Array, 'B T Q C'],
  k: Float[Array, 'B T K C'],
  v: Float[Array, 'B T V E'],
  log_decay: Float[Array, 'B T H'],
  first: Bool[Array, 'B T'],
  state: Float[Array, 'B H C E'],
  read: Float[Array, 'B T V C'] | None,
  block: int,
  interpret: bool,
) -> tuple[Float[Array, 'B H C E'], Float[Array, 'B T H E']]:
  """The state after the rows, and y_t = q_t h_t of each token.

  h_t = exp(log_decay_t) h_{t-1} + k_t v_tᵀ. The state is zero before the first token of a document.
  Q, K and V divide H. With `read` the value is v_t - read_t h, where h is the state before the token's chunk
  of `block` tokens.
  """
  (B, T, H), (C, E) = log_decay.shape, state.shape[2:]
  count = -(-T // block)

  def pad(x):  # padding adds nothing, and belongs to the document before it
    return jnp.pad(x, ((0, 0), (0, count * block - T), *((0, 0),) * (x.ndim - 2)))

  q, k, v, read = (x if x is None else pad_channels(pad(x).swapaxes(1, 2)) for x in (q, k, v, read))
  log_decay = pad(log_decay.astype(jnp.float32)).swapaxes(1, 2).reshape(B, H, count, block)
  line = jnp.cumsum(pad(first).reshape(B, 1, count, block), -1, dtype=jnp.int32)
  padded = jnp.pad(state, ((0, 0), (0, 0), (0, q.shape[-1] - C), (0, v.shape[-1] - E)))
  operands = Operands(q, k, v, log_decay, line.reshape(B, 1, -1, 1), line, padded, read)
  y, last = differentiable_scan(block, interpret)(operands)
  return last[:, :, :C, :E], y[:, :, :T, :E].swapaxes(1, 2)


@functools.cache
def differentiable_scan(block: int, interpret: bool) -> Callable:
  """`Operands → (y [B H T E], last state)`, with a backward pass of its own."""
  kernels = Kernels(block, interpret)

  def forward(operands):
    y, states, last = kernels.forward(operands)
    return (y, last), (operands, states)

  scan = jax.custom_vjp(lambda operands: forward(operands)[0])
  scan.defvjp(forward, kernels.backward)
  return scan


class Decays(NamedTuple):
  """What remains of tokens and states in a chunk; zero across the boundaries of documents.

  Attributes:
    within: of the input at j in the state at i.
    entering: of the state before the chunk at i. leaving: of the input at j after the chunk.
    through: of the state before the chunk after it.
  """

  within: Float[Array, 'I J']
  entering: Float[Array, 'I 1']
  leaving: Float[Array, 'J 1']
  through: Float[Array, '1 1']


@dataclasses.dataclass(frozen=True)
class Kernels:
  """The two kernels, with chunks of `block` tokens."""

  block: int
  interpret: bool

  def forward(self, operands: Operands) -> tuple[Array, Array, Array]:
    """y [B H T E], the states before the chunks [B H N C E], and the last state."""
    state, (N, _) = operands.state, operands.log_decay.shape[2:]
    B, H, C, E = state.shape
    outputs = (B, H, N * self.block, E), (B, H, N, C, E), state.shape
    return self.call(self.forward_row, (operands,), outputs)

  def backward(self, residuals: tuple[Operands, Array], cotangents: tuple[Array, Array]) -> tuple[Operands]:
    """The cotangents of the operands."""
    operands, states = residuals
    d_y, d_last = cotangents
    B, H = operands.state.shape[:2]
    inputs = {name: x for name in INPUTS if (x := getattr(operands, name)) is not None}
    outputs = [(B, H, *x.shape[2:]) for x in inputs.values()]
    gradients = self.call(self.backward_row, (operands, states, d_y, d_last), outputs)
    # The heads of a group share their queries, keys or values.
    gradients = (
      d.reshape(B, x.shape[1], -1, *x.shape[2:]).sum(2).astype(x.dtype)
      for d, x in zip(gradients, inputs.values())
    )
    return (Operands(**dict.fromkeys(Operands._fields) | dict(zip(inputs, gradients))),)

  def call(self, row: Callable, arrays: tuple, outputs: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
    """`row(*arrays, *outputs)` for every row and head; the outputs are in float32.

    Raises:
      ValueError: if a row does not fit a TPU's memory for vectors.
    """
    B, H = outputs[0][:2]

    def spec(shape):
      zeros = (0,) * (len(shape) - 2)
      return pl.BlockSpec((None, None, *shape[2:]), lambda b, h: (b, jax.lax.div(h, H // shape[1]), *zeros))

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in outputs]
    if pallas.target_platform(self.interpret) == 'tpu':
      needed = 2 * sum(map(vector_bytes, [*jax.tree.leaves(arrays), *shapes]))  # two buffers
      require(
        needed <= VMEM,
        f"recurrence='pallas' takes {needed:,} bytes of a TPU's memory for vectors for a row of one head, "
        f"and {VMEM:,} are for it; use shorter rows, or recurrence='chunks'",
      )
    return pl.pallas_call(
      row,
      grid=(B, H),
      in_specs=jax.tree.map(lambda x: spec(x.shape), arrays),
      out_specs=[spec(shape) for shape in outputs],
      out_shape=shapes,
      interpret=self.interpret,
      compiler_params=pallas.compiler_params(self.interpret),
      name=f'recurrence_{row.__name__.removesuffix("_row")}',
    )(*arrays)

  def forward_row(self, operands, y_ref, states_ref, last_ref):
    """One row of one head, chunk by chunk."""

    def step(n, state):
      tokens = self.tokens(n)
      q, k = operands.q[tokens, :], operands.k[tokens, :]
      v, _ = self.values(operands, tokens, state)
      decays = self.decays(operands, n)
      states_ref[n] = state
      weights = (decays.within * matmul(q, k, (1, 1))).astype(v.dtype)
      y_ref[tokens, :] = matmul(weights, v) + decays.entering * matmul(q, state.astype(q.dtype))
      return decays.through * state + matmul((decays.leaving * k).astype(v.dtype), v, (0, 0))

    last_ref[...] = jax.lax.fori_loop(0, operands.log_decay.shape[0], step, operands.state[...])

  def backward_row(self, operands, states_ref, d_y_ref, d_last_ref, *outputs):
    """The gradients of one row of one head, from its last chunk to its first."""
    d_q_ref, d_k_ref, d_v_ref, d_decay_ref, d_state_ref, *d_read_ref = outputs
    count = operands.log_decay.shape[0]

    def step(i, d_state):
      n = count - 1 - i
      tokens = self.tokens(n)
      state, d_y = states_ref[n], d_y_ref[tokens, :]
      q, k = operands.q[tokens, :], operands.k[tokens, :]
      v, read = self.values(operands, tokens, state)
      decays = self.decays(operands, n)
      before, after, d_out = state.astype(q.dtype), d_state.astype(q.dtype), d_y.astype(v.dtype)
      pairs = matmul(q, k, (1, 1))
      d_pairs = decays.within * matmul(d_out, v, (1, 1))
      added = matmul(k, after)  # what a value changes after the chunk
      d_v = matmul((decays.within * pairs).astype(v.dtype), d_out, (0, 0)) + decays.leaving * added
      of_before, of_after = matmul(d_out, before, (1, 1)), matmul(v, after, (1, 1))
      d_q_ref[tokens, :] = matmul(d_pairs.astype(k.dtype), k) + decays.entering * of_before
      d_k_ref[tokens, :] = matmul(d_pairs.astype(q.dtype), q, (0, 0)) + decays.leaving * of_after
      d_v_ref[tokens, :] = d_v
      # Of the logarithms of the decays.
      of_entering = decays.entering * (d_y * matmul(q, before)).sum(1, keepdims=True)
      of_leaving = decays.leaving * (v * added).sum(1, keepdims=True)
      of_through = decays.through * (state * d_state).sum(1, keepdims=True).sum(0, keepdims=True)
      d_decay_ref[pl.ds(n, 1), :] = self.decay_gradient(d_pairs * pairs, of_entering, of_leaving, of_through)
      d_state = decays.through * d_state + matmul((decays.entering * q).astype(v.dtype), d_out, (0, 0))
      if read is None:
        return d_state
      d_v = d_v.astype(read.dtype)
      d_read_ref[0][tokens, :] = -matmul(d_v, before, (1, 1))
      return d_state - matmul(read, d_v, (0, 0))

    d_state_ref[...] = jax.lax.fori_loop(0, count, step, d_last_ref[...])

  def values(self, operands: Operands, tokens: Any, state: Array) -> tuple[Array, Array | None]:
    """The values of a chunk, and what of the state before it was taken from them."""
    v = operands.v[tokens, :]
    if operands.read is None:
      return v, None
    read = operands.read[tokens, :]
    return (v - matmul(read, state.astype(read.dtype))).astype(v.dtype), read

  def tokens(self, n: Int[Array, '']) -> Any:
    """The tokens of a chunk."""
    return pl.ds(pl.multiple_of(n * self.block, self.block), self.block)

  def indices(self) -> tuple[Int[Array, 'I J'], Int[Array, 'I J']]:
    """The numbers of the lines and columns of a square."""
    shape = self.block, self.block
    return tuple(jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))

  def decays(self, operands: Operands, n: Int[Array, '']) -> Decays:
    """The decays of a chunk.

    Sums between two tokens are those of a product with ones: differences of cumulative sums would cancel.
    """
    lines, columns = self.indices()
    decay, line = (ref[pl.ds(n, 1), :] for ref in (operands.log_decay, operands.line))
    column = operands.column[self.tokens(n), :]
    # of the line's token: from the start up to it, and after it to the end
    until = jnp.where(columns <= lines, decay, 0.0)
    later = jnp.where(columns > lines, decay, 0.0).sum(1, keepdims=True)
    between = matmul(until, (columns < lines).astype(jnp.float32), precision=EXACT)
    total, last = decay.sum(1, keepdims=True), column.max(0, keepdims=True)
    return Decays(
      jnp.where((column == line) & (columns <= lines), jnp.exp(between), 0.0),
      jnp.where(column == 0, jnp.exp(until.sum(1, keepdims=True)), 0.0),
      jnp.where(column == last, jnp.exp(later), 0.0),
      jnp.where(last == 0, jnp.exp(total), 0.0),
    )

  def decay_gradient(
    self,
    of_within: Float[Array, 'I J'],
    of_entering: Float[Array, 'I 1'],
    of_leaving: Float[Array, 'J 1'],
    of_through: Float[Array, '1 1'],
  ) -> Float[Array, '1 I']:
    """The gradient of the log decays from those of the logarithms of `Decays`: a decay at r is in the sums of
    the pairs j < r ≤ i.
    """
    lines, columns = self.indices()
    before = matmul(of_within, (lines < columns).astype(jnp.float32), precision=EXACT)
    ending = jnp.where(columns <= lines, before + of_entering, 0.0).sum(0, keepdims=True)
    beginning = jnp.where(lines < columns, of_leaving, 0.0).sum(0, keepdims=True)
    return ending + beginning + of_through


EXACT = jax.lax.Precision.HIGHEST


def vector_bytes(x: Any) -> int:
  """The bytes that one row and head of an array takes in a TPU's memory for vectors, in whole registers."""
  *outer, width = x.shape[2:]
  return math.prod(outer) * -(-width // LANES) * LANES * x.dtype.itemsize
