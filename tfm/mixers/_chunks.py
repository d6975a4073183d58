"""Rows in chunks, for a state that is carried from chunk to chunk and belongs to one document at a time.

Letters beyond the glossary: N chunks of I tokens, as queries, or J, as keys.
"""

import jax.numpy as jnp
from flax import struct

from tfm.shapes import Array, Bool, Float


def cut(x: Float[Array, 'B T H ...'], groups: int, chunk: int) -> Float[Array, 'B N K G I ...']:
  """Rows in chunks of one size, at most `chunk` tokens, the last filled up with zeros; heads in K groups.

  Heads stand before tokens: each product of two arrays is then one matrix product a head.
  """
  B, T, H = x.shape[:3]
  count = -(-T // chunk)
  size = -(-T // count)
  x = jnp.pad(x, ((0, 0), (0, count * size - T), *((0, 0),) * (x.ndim - 2)))
  return jnp.moveaxis(x.reshape(B, count, size, groups, H // groups, *x.shape[3:]), 2, 4)


def joined(x: Float[Array, 'B N K G I C'], length: int) -> Float[Array, 'B T H C']:
  """What was `cut`, as rows of `length` tokens again."""
  B, N, K, G, I, C = x.shape
  return jnp.moveaxis(x, 4, 2).reshape(B, N * I, K * G, C)[:, :length]


@struct.dataclass
class Runs:
  """How documents lie in chunks; the axes of heads and groups are there, of size 1.

  A document is one run of tokens, and the state belongs to the last one read.

  Attributes:
    together: whether tokens i and j of a chunk stand in one document.
    entering: whether the state that comes into the chunk is of the token's document.
    leaving: whether the state that goes out of it is.
    through: whether both states are of one document.
  """

  together: Bool[Array, 'B N 1 1 I J']
  entering: Bool[Array, 'B N 1 1 I']
  leaving: Bool[Array, 'B N 1 1 I']
  through: Bool[Array, 'B N 1 1']

  @classmethod
  def of(cls, first: Bool[Array, 'B T'], chunk: int) -> 'Runs':
    """`first` tells the first tokens of documents; padding counts to the document before it."""
    return cls.within(cut(first[:, :, None], 1, chunk))

  @classmethod
  def within(cls, first: Bool[Array, 'B N 1 1 I']) -> 'Runs':
    """The same in chunks already."""
    run = jnp.cumsum(first, -1)
    last = run[..., -1:]
    return cls(run[..., :, None] == run[..., None, :], run == 0, run == last, last[..., 0] == 0)


def reversed_time(x: Float[Array, 'B N K G I ...']) -> Float[Array, 'B N K G I ...']:
  """Chunks and their tokens in the opposite order."""
  return jnp.flip(x, (1, 4))
