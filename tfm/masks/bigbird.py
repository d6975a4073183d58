"""Block-sparse attention to neighbouring, global and random blocks."""

import dataclasses
from typing import Annotated

import numpy as np
from annotated_types import Interval

from tfm.masks.protocol import Mask
from tfm.shapes import Array, Bool, Int
from tfm.spec import NonNegativeInt, Size, SizeOrZero


# The largest prime whose square fits into 31 bits, so that products of two residues do not overflow.
PRIME = 46337


@dataclasses.dataclass(frozen=True)
class BigBird(Mask):
  """Block-sparse attention over window, global and random blocks (Zaheer et al. 2020, §2 and app. D, ITC).

  A document is split into blocks of `block` tokens. With i the query's block and j the key's, and g the
  number of global blocks, a query sees a key if

    |i - j| ≤ window,  or  i < g,  or  j < g,  or  j is one of the random blocks of i.

  For each i, `random` distinct blocks are drawn uniformly from those that are neither global nor in its
  window; all of them if there are no more. The draws depend on (seed, i) alone and use arithmetic on
  positions: no table, no state, the same on host and device.

  `blocks` sets the range of the draws. A number is the blocks of the longest document: draws come from all of
  them, before and after the query, as in the paper (for an encoder). None: draws come from the blocks before
  the window, which needs no length and keeps `random` blocks under `causal &` (for a decoder, whose attention
  the paper leaves full).

  Other deviations from the paper: its code also makes the last block global, which depends on the length and
  so is no predicate on positions; and it draws per head, while a mask is shared by all heads. For different
  draws per layer use a pattern of blocks with different seeds.

  Attributes:
    block: tokens of a block.
    random: random blocks for each query block.
    window: blocks of the window on each side; 1 is the paper's three blocks.
    global_tokens: first tokens that see all tokens and are seen by all, rounded up to whole blocks.
    seed: seed of the draws.
    blocks: blocks of the longest document, or None to draw from the blocks before the window.

  Raises:
    ValueError: for a block or blocks below 1, or another number below 0.
  """

  examples = ('bigbird(2, 1, 0, 2)', 'bigbird(2, 2, 1, 0, seed=1, blocks=6)')

  block: Size = 64
  random: Annotated[int, Interval(ge=0, le=1024)] = 3
  window: SizeOrZero = 1
  global_tokens: SizeOrZero = 128
  seed: NonNegativeInt = 0
  blocks: Size | None = None

  def __call__(self, q, k):
    i, j = q // self.block, k // self.block
    start = -(-self.global_tokens // self.block)
    visible = (i - self.window <= j) & (j <= i + self.window) | (i < start) | (j < start)
    for block in self.random_blocks(i, start):
      visible = visible | (j == block)
    return visible

  def random_blocks(self, i: Int[Array, '*N'], start: int) -> list[Int[Array, '*N']]:
    """The random blocks of each query block i, -1 for an unused draw; blocks below `start` are global."""
    # The candidates are the blocks start … before - 1 and after … end - 1, numbered 0 … count - 1.
    before, after = maximum(i - self.window, start), maximum(i + self.window + 1, start)
    end = after if self.blocks is None else maximum(after, self.blocks)
    count = (before - start) + (end - after)
    # Floyd's algorithm for a random subset without a table (Bentley & Floyd 1987): for each `top` of the last
    # `random` numbers draw one of 0 … top, and take `top` itself if that number is already drawn.
    picks, blocks = [], []
    for draw in range(self.random):
      top = count - self.random + draw
      pick = random_residue(i, (self.seed, draw)) % (maximum(top, 0) + 1)
      for other in picks:
        pick = where(pick == other, top, pick)
      picks.append(pick)
      block = where(start + pick < before, start + pick, start + pick + (after - before))
      # With fewer candidates than draws the first draws are unused, and the others take all candidates.
      blocks.append(where(top < 0, -1, block))
    return blocks


def where(
  condition: Bool[Array, '*#N'], a: Int[Array, '*#N'] | int, b: Int[Array, '*#N'] | int
) -> Int[Array, '*N']:
  """a where `condition` holds, else b; operators only, for NumPy and JAX arrays."""
  return b + condition * (a - b)


def maximum(a: Int[Array, '*#N'], b: Int[Array, '*#N'] | int) -> Int[Array, '*N']:
  """The elementwise maximum."""
  return where(a < b, b, a)


def random_residue(i: Int[Array, '*N'], key: tuple[int, ...]) -> Int[Array, '*N']:
  """A pseudorandom number below `PRIME` for each i: a cubic polynomial in i with coefficients from the key.

  Over random keys, any four i get independent numbers (Wegman & Carter 1981), without integer overflow. Its
  remainder modulo thousands of blocks is uniform to a few percent.
  """
  x, value = i % PRIME, 0
  for coefficient in np.random.SeedSequence(key).generate_state(4):
    value = (value * x + int(coefficient) % PRIME) % PRIME
  return value
