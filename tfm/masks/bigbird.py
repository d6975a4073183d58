"""Blocks that see their neighbours, some global blocks and some random ones."""

import dataclasses

import numpy as np

from tfm.masks.protocol import Mask, check_whole
from tfm.shapes import Array, Bool, Int


# The largest prime whose square fits into 31 bits: products of two residues overflow nowhere.
PRIME = 46337


@dataclasses.dataclass(frozen=True)
class BigBird(Mask):
  """Block-sparse attention over window, global and random blocks (Zaheer et al. 2020, §2 and app. D, ITC).

  A document is cut into blocks of `block` tokens. With i the query's block and j the key's, and g the
  number of global blocks, a query sees a key if

    |i - j| ≤ window,  or  i < g,  or  j < g,  or  j is one of the blocks drawn for i.

  For each i, `random` different blocks are drawn from those that are neither global nor in its window,
  every set as likely as another, all of them where there are no more. The draws are a function of
  (seed, i) alone, by arithmetic on positions: no table, no state, the same on host and device.

  From which blocks is drawn is told by `blocks`. A number says how many blocks the longest document
  has, and they are all of these, before and after, as in the paper: for an encoder. None: they are those
  before the window, which asks for no length and keeps its `random` blocks under `causal &`: for a
  decoder, whose attention the paper leaves full.

  Other deviations from the paper: its code also makes the last block global, which a predicate on
  positions does not know; it draws for each head apart, and a mask is one for all heads. Give the blocks
  of a pattern other seeds to draw for each layer apart.

  Attributes:
    block: tokens of a block.
    random: random blocks for each query block.
    window: blocks of the window on each side; 1 is the paper's three blocks.
    global_tokens: tokens at the beginning that see all and are seen by all, rounded up to whole blocks.
    seed: of the draws.
    blocks: blocks of the longest document, or None to draw from what came before.

  Raises:
    ValueError: for a block or blocks below 1, or another number below 0.
  """

  examples = ('bigbird(2, 1, 0, 2)', 'bigbird(2, 2, 1, 0, seed=1, blocks=6)')

  block: int = 64
  random: int = 3
  window: int = 1
  global_tokens: int = 128
  seed: int = 0
  blocks: int | None = None

  def __post_init__(self):
    check_whole(self, block=1, random=0, window=0, global_tokens=0, seed=0, blocks=1)

  def __call__(self, q, k):
    i, j = q // self.block, k // self.block
    start = -(-self.global_tokens // self.block)
    seen = (i - self.window <= j) & (j <= i + self.window) | (i < start) | (j < start)
    for block in self.drawn(i, start):
      seen = seen | (j == block)
    return seen

  def drawn(self, i: Int[Array, '*N'], start: int) -> list[Int[Array, '*N']]:
    """The random blocks of the query blocks i, or -1 where there is none; blocks below `start` are global."""
    # The candidates: start … before - 1 and after … end - 1, counted as 0 … count - 1.
    before, after = greater(i - self.window, start), greater(i + self.window + 1, start)
    end = after if self.blocks is None else greater(after, self.blocks)
    count = (before - start) + (end - after)
    # Floyd's way to a random subset without a table (Bentley & Floyd 1987): for each `top` of the last
    # `random` numbers one of 0 … top, or `top` itself where that one is taken.
    picks, blocks = [], []
    for draw in range(self.random):
      top = count - self.random + draw
      pick = residue(i, (self.seed, draw)) % (greater(top, 0) + 1)
      for other in picks:
        pick = choice(pick == other, top, pick)
      picks.append(pick)
      block = choice(start + pick < before, start + pick, start + pick + (after - before))
      # Where there are fewer candidates than draws, the first draws are idle, and the others take them all.
      blocks.append(choice(top < 0, -1, block))
    return blocks


def choice(
  yes: Bool[Array, '*#N'], a: Int[Array, '*#N'] | int, b: Int[Array, '*#N'] | int
) -> Int[Array, '*N']:
  """a where `yes`, else b, by operators."""
  return b + yes * (a - b)


def greater(a: Int[Array, '*#N'], b: Int[Array, '*#N'] | int) -> Int[Array, '*N']:
  """The greater of two."""
  return choice(a < b, b, a)


def residue(i: Int[Array, '*N'], key: tuple[int, ...]) -> Int[Array, '*N']:
  """A number below `PRIME` for each i and key: a cubic polynomial in i with coefficients from the key.

  Over the keys, any four i get independent numbers (Wegman & Carter 1981), and no type has to wrap
  around. The remainder by a number of thousands of blocks is even to a few percent.
  """
  x, value = i % PRIME, 0
  for coefficient in np.random.SeedSequence(key).generate_state(4):
    value = (value * x + int(coefficient) % PRIME) % PRIME
  return value
