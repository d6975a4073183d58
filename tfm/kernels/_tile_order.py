"""Which tiles the kernels of `_tiles` visit, line after line, and in which order.

Letters: I blocks of queries, J of keys, L lines, N tiles that the mask shows, D diagonals of blocks.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.kernels._block_plan import BlockGrid, VisitPlan, compare_documents, plan_visits
from tfm.shapes import Array, Int


class Lines(NamedTuple):
  """The tiles that the mask shows, line after line: line l has those from `starts[l]` to `starts[l + 1]`.

  The tiles after the last line are padding, of which there must be one or more.

  Attributes:
    queries, keys: the blocks of a tile. diagonals: which tile of the bias it takes.
    fully_visible: 1 where the mask shows every pair.
  """

  starts: Int[Array, 'L+1']
  queries: Int[Array, 'N']
  keys: Int[Array, 'N']
  diagonals: Int[Array, 'N']
  fully_visible: Int[Array, 'N']

  @classmethod
  def sorted_by(cls, lines, count, queries, keys, diagonals, fully_visible) -> 'Lines':
    """Tiles in order of their lines, of which there are `count`, on the host."""
    order = np.argsort(lines, kind='stable')
    starts = np.searchsorted(lines[order], np.arange(count + 1))
    columns = (np.append(x[order], 0) for x in (queries, keys, diagonals, fully_visible))
    return cls(*(x.astype(np.int32) for x in (starts, *columns)))

  def visits(self, grid: BlockGrid, q_segments: Array, k_segments: Array) -> 'Visits':
    """What each line visits in rows with these documents: a loop without branches can be pipelined."""
    shared, common = compare_documents(grid, q_segments, k_segments)
    starts, tiles = jnp.asarray(self.starts), jnp.arange(self.queries.shape[0])[None]
    lines = jnp.searchsorted(starts[1:], tiles, side='right')
    is_shown = shared[:, self.queries, self.keys] & (tiles < starts[-1])
    is_plain = common[:, self.queries, self.keys] & (jnp.asarray(self.fully_visible) != 0)[None]
    ranks = 3 * lines + jnp.where(is_shown, jnp.where(is_plain, 0, 1), 2)
    order = jnp.argsort(ranks, axis=-1)
    firsts = 3 * jnp.arange(len(self.starts) - 1)
    find = jax.vmap(jnp.searchsorted, (0, None))
    ends = (find(jnp.take_along_axis(ranks, order, 1), firsts + rank) for rank in range(3))
    blocks = (jnp.asarray(x)[order] for x in (self.queries, self.keys, self.diagonals))
    return Visits(*(x[:, None].astype(jnp.int32) for x in (*ends, *blocks)))


class Visits(NamedTuple):
  """The tiles that each line visits in a row: first those of which every pair is visible, then the others.

  Attributes:
    starts, plain, ends: of each line; the tiles from `starts` to `plain` need no mask, those to `ends` do.
    queries, keys, diagonals: as in `Lines`; None where a kernel does not read it.
  """

  starts: Int[Array, 'B 1 L']
  plain: Int[Array, 'B 1 L']
  ends: Int[Array, 'B 1 L']
  queries: Int[Array, 'B 1 N'] | None
  keys: Int[Array, 'B 1 N'] | None
  diagonals: Int[Array, 'B 1 N'] | None


class Plan(NamedTuple):
  """The tiles by block of queries, by block of keys and by diagonal, on the host.

  Attributes:
    offsets: of each diagonal, query index less key index of its tiles' first tokens.
  """

  by_query: Lines
  by_key: Lines
  by_diagonal: Lines
  offsets: Int[np.ndarray, 'D']


@functools.lru_cache(maxsize=64)
def make_plan(mask: Callable, layout: str, grid: BlockGrid) -> Plan:
  """The plan of a mask over blocks that are as large for queries as for keys."""
  visits: VisitPlan = plan_visits(mask, layout, grid)[0]
  queries = np.repeat(np.arange(grid.shape[0]), np.diff(visits.starts))
  keys, fully_visible = visits.blocks, visits.fully_visible
  offsets, diagonals = np.unique(queries - keys, return_inverse=True)
  tiles = queries, keys, diagonals, fully_visible
  return Plan(
    Lines.sorted_by(queries, grid.shape[0], *tiles),
    Lines.sorted_by(keys, grid.shape[1], *tiles),
    Lines.sorted_by(diagonals, len(offsets), *tiles),
    offsets * grid.keys,
  )
