"""The states of a selective state space within a chunk: token by token, or by an associative scan."""

import functools

import jax
import jax.numpy as jnp

from tfm.parallel.mesh import current_platform
from tfm.shapes import Array, Bool, Float


Chunk = tuple[
  Float[Array, 'B T inner'],
  Float[Array, 'B T inner'],
  Float[Array, 'B T state'],
  Float[Array, 'B T state'],
  Bool[Array, 'B T'],
]
Result = tuple[Float[Array, 'B inner state'], Float[Array, 'B T inner']]


def scan_chunk(a: Float[Array, 'inner state'], h: Float[Array, 'B inner state'], chunk: Chunk) -> Result:
  """h after a chunk of x, Δ, B, C and `first`, the tokens before which h becomes zero; and C_t · h_t.

    h_t = exp(Δ_t A) ⊙ h_{t-1} + Δ_t B_t x_t

  In float32. CPUs scan token by token, three to four times as fast (docs/results/attention.md); GPUs and
  TPUs, where that is not measured, associatively, as steps one after another are dear there.
  """
  return SCANS.get(current_platform(), scan_associatively)(a, h, chunk)


def scan_tokens(a: Float[Array, 'inner state'], h: Float[Array, 'B inner state'], chunk: Chunk) -> Result:
  """By a loop over tokens: the fewest reads and writes."""
  if h.shape[0] != 1:  # an export's number of rows is a symbol
    return jax.vmap(functools.partial(scan_row, a))(h, chunk)
  # Without the axis of the rows: XLA's CPU compiler copies the arrays of one row for each token.
  state, y = scan_row(a, h[0], jax.tree.map(lambda x: x[0], chunk))
  return state[None], y[None]


def scan_row(
  a: Float[Array, 'inner state'], h: Float[Array, 'inner state'], chunk: tuple[Array, ...]
) -> tuple[Float[Array, 'inner state'], Float[Array, 'T inner']]:
  """`scan_tokens` of one row. In the loop the channels stand last, as there are many."""
  x, delta, b, c, first = chunk
  # Outside the loop, whose backward pass would else read and write the gradient of A for every token.
  decay = jnp.where(first[:, None, None], 0, jnp.exp(delta[:, None] * a.T[None]))

  def advance(h, token):
    decay, x, b, c = token
    h = decay * h + b[:, None] * x[None]
    return h, jnp.einsum('NI,N->I', h, c, precision='highest')

  h, y = jax.lax.scan(advance, h.T, (decay, delta * x.astype(jnp.float32), b, c))
  return h.T, y


def scan_associatively(
  a: Float[Array, 'inner state'], h: Float[Array, 'B inner state'], chunk: Chunk
) -> Result:
  """By maps of all tokens, composed in log₂ T steps: the fewest steps one after another."""
  x, delta, b, c, first = chunk
  decay = jnp.where(first[..., None, None], 0, jnp.exp(delta[..., None] * a[None, None]))
  added = (delta * x.astype(jnp.float32))[..., None] * b[:, :, None]
  decays, inputs = jax.lax.associative_scan(compose, (decay, added), axis=1)
  h = decays * h[:, None] + inputs
  return h[:, -1], jnp.einsum('BTIN,BTN->BTI', h, c, precision='highest')


def compose(p: tuple[Array, Array], q: tuple[Array, Array]) -> tuple[Array, Array]:
  """h → q(p(h)) of two maps h → a ⊙ h + b."""
  return q[0] * p[0], q[0] * p[1] + q[1]


SCANS = {'cpu': scan_tokens}
