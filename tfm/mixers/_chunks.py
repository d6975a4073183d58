"""Rows in chunks, for a state that passes from chunk to chunk and belongs to one document at a time.

Letters beyond the glossary: N chunks of I tokens, as queries, or J, as keys.
"""

import jax.numpy as jnp
from flax import struct

from tfm.shapes import Array, Bool, Float


def split_chunks(x: Float[Array, 'B T H ...'], groups: int, chunk: int) -> Float[Array, 'B N K G I ...']:
  """Splits rows into chunks of equal size, at most `chunk` tokens; the last is padded with zeros.

  Heads are in K groups and stand before the tokens, so that a product of two arrays is one matrix product per
  head.
  """
  B, T, H = x.shape[:3]
  count = -(-T // chunk)
  size = -(-T // count)
  x = jnp.pad(x, ((0, 0), (0, count * size - T), *((0, 0),) * (x.ndim - 2)))
  return jnp.moveaxis(x.reshape(B, count, size, groups, H // groups, *x.shape[3:]), 2, 4)


def join_chunks(x: Float[Array, 'B N K G I C'], length: int) -> Float[Array, 'B T H C']:
  """Undoes `split_chunks`, for rows of `length` tokens."""
  B, N, K, G, I, C = x.shape
  return jnp.moveaxis(x, 4, 2).reshape(B, N * I, K * G, C)[:, :length]


@struct.dataclass
class Runs:
  """Where documents begin and end in chunks; the axes of heads and groups have size 1.

  A document is one run of tokens, and the state belongs to the last one read.

  Attributes:
    together: whether tokens i and j of a chunk are in one document.
    entering: whether the state before the chunk is of the token's document.
    leaving: whether the state after the chunk is.
    through: whether both states are of one document.
  """

  together: Bool[Array, 'B N 1 1 I J']
  entering: Bool[Array, 'B N 1 1 I']
  leaving: Bool[Array, 'B N 1 1 I']
  through: Bool[Array, 'B N 1 1']

  @classmethod
  def of(cls, first: Bool[Array, 'B T'], chunk: int) -> 'Runs':
    """`first` marks the first tokens of documents; padding belongs to the document before it."""
    return cls.within(split_chunks(first[:, :, None], 1, chunk))

  @classmethod
  def within(cls, first: Bool[Array, 'B N 1 1 I']) -> 'Runs':
    """As `of`, for tokens that are split into chunks."""
    run = jnp.cumsum(first, -1)
    last = run[..., -1:]
    return cls(run[..., :, None] == run[..., None, :], run == 0, run == last, last[..., 0] == 0)


def reverse_time(x: Float[Array, 'B N K G I ...']) -> Float[Array, 'B N K G I ...']:
  """Reverses the order of the chunks and of their tokens."""
  return jnp.flip(x, (1, 4))
