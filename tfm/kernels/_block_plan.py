"""Which blocks of keys each block of queries visits, and arrays padded to whole blocks.

Wherever `inputs` is a parameter, it is a `tfm.kernels.protocol.AttentionInputs`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tfm.errors import require
from tfm.shapes import Array, Bool, Float, Int, PyTree
from tfm.spec import Size


# Pairs of a query and a key that a mask is asked about at once, which bounds the memory of a plan.
PAIRS = 2**22
# Pairs of blocks in a plan, each of which needs some hundred bytes while it is made: two million tokens in
# blocks of the default sizes.
MAX_BLOCK_PAIRS = 2**25


@dataclasses.dataclass(frozen=True)
class BlockSizes:
  """The largest number of tokens in a block of queries and in a block of keys.

  Raises:
    ValueError: for a size below 1.
  """

  queries: Size = 512
  keys: Size = 256

  def __post_init__(self):
    for field in ('queries', 'keys'):
      if getattr(self, field) < 1:
        raise ValueError(f'{field}={getattr(self, field)} must be at least 1 token')

  def divide(self, T: int, S: int) -> 'BlockGrid':
    """T queries and S keys in as few blocks as these sizes allow, all of about one size, to pad little."""
    queries, keys = (-(-n // -(-n // size)) for n, size in ((T, self.queries), (S, self.keys)))
    return BlockGrid(queries, keys, T, S)


@dataclasses.dataclass(frozen=True)
class BlockGrid:
  """T queries in blocks of `queries` by S keys in blocks of `keys`; the last block of each is padded."""

  queries: int
  keys: int
  T: int
  S: int

  @property
  def shape(self) -> tuple[int, int]:
    """(number of query blocks, number of key blocks)."""
    return -(-self.T // self.queries), -(-self.S // self.keys)

  def pad_queries(self, x: Array, axis: int) -> Array:
    """Zero-pads the query axis to whole blocks."""
    return _pad_axis(x, axis, self.shape[0] * self.queries)

  def pad_keys(self, x: Array, axis: int) -> Array:
    """Zero-pads the key axis to whole blocks."""
    return _pad_axis(x, axis, self.shape[1] * self.keys)

  def query_block(self, x: Array, i: Int[Array, ''], axis: int = 1) -> Array:
    """Block i along the query axis of an array."""
    return jax.lax.dynamic_slice_in_dim(x, i * self.queries, self.queries, axis)

  def key_block(self, x: Array, j: Int[Array, ''], axis: int = 1) -> Array:
    """Block j along the key axis of an array."""
    return jax.lax.dynamic_slice_in_dim(x, j * self.keys, self.keys, axis)

  def put_query_block(self, x: Array, block: Array, i: Int[Array, ''], axis: int = 1) -> Array:
    """The array with `block` as its block i along the query axis."""
    return jax.lax.dynamic_update_slice_in_dim(x, block, i * self.queries, axis)

  def put_key_block(self, x: Array, block: Array, j: Int[Array, '']) -> Array:
    """The array with `block` as its block j along the key axis, the second."""
    return jax.lax.dynamic_update_slice_in_dim(x, block, j * self.keys, 1)


def _pad_axis(x: Array, axis: int, size: int) -> Array:
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, size - x.shape[axis])
  return jnp.pad(x, widths) if size > x.shape[axis] else x


class VisitPlan(NamedTuple):
  """The visited blocks in compressed sparse row form: line i visits `blocks[starts[i]:starts[i + 1]]`.

  `fully_visible` is 1 for a visited block of which the mask shows every pair.
  """

  starts: np.ndarray
  blocks: np.ndarray
  fully_visible: np.ndarray

  @classmethod
  def from_tables(
    cls, visible: Bool[np.ndarray, 'I J'], fully_visible: Bool[np.ndarray, 'I J']
  ) -> 'VisitPlan':
    lines, blocks = np.nonzero(visible)
    starts = np.searchsorted(lines, np.arange(len(visible) + 1))
    return cls(
      starts.astype(np.int32), blocks.astype(np.int32), fully_visible[lines, blocks].astype(np.int32)
    )


@functools.lru_cache(maxsize=64)
def plan_visits(mask: Callable, layout: str, grid: BlockGrid) -> tuple[VisitPlan, VisitPlan]:
  """(key blocks to visit for each query block, query blocks to visit for each key block)."""
  indices = [
    np.arange(count * size).reshape(count, size) for count, size in zip(grid.shape, (grid.queries, grid.keys))
  ]
  visible, fully_visible = classify_blocks(mask, layout, *indices)
  return (VisitPlan.from_tables(visible, fully_visible), VisitPlan.from_tables(visible.T, fully_visible.T))


def classify_blocks(
  mask: Callable, layout: str, q_indices: Int[np.ndarray, 'I T'], k_indices: Int[np.ndarray, 'J S']
) -> tuple[Bool[np.ndarray, 'I J'], Bool[np.ndarray, 'I J']]:
  """(whether the mask may show any pair, whether it shows every pair) of each pair of blocks.

  Args:
    q_indices, k_indices: the indices of the tokens in each block.
  """
  pairs = len(q_indices) * len(k_indices)
  require(
    pairs <= MAX_BLOCK_PAIRS,
    f'the plan of {len(q_indices):,} blocks of {q_indices.shape[1]} queries and {len(k_indices):,} of '
    f'{k_indices.shape[1]} keys does not fit into memory; give the kernel larger blocks, such as '
    f'(queries={4 * q_indices.shape[1]}, keys={4 * k_indices.shape[1]})',
  )
  visible, fully_visible = tables = np.empty((2, len(q_indices), len(k_indices)), bool)
  q_consecutive, k_consecutive = ((np.diff(x) == 1).all(1) for x in (q_indices, k_indices))
  # A relative mask is the same for all blocks along a diagonal, so that one of them is examined.
  on_diagonal = mask.relative & q_consecutive[:, None] & k_consecutive
  offsets = (q_indices[:, :1] - k_indices[:, 0])[on_diagonal]
  _, first, diagonal = np.unique(offsets, return_index=True, return_inverse=True)
  if len(first):
    lines, columns = (index[first] for index in np.nonzero(on_diagonal))
    examined = [_classify_line(mask, layout, q_indices[i], k_indices[[j]]) for i, j in zip(lines, columns)]
    tables[:, on_diagonal] = np.concatenate(examined, 1)[:, diagonal]
  for i, others in enumerate(~on_diagonal):
    if others.any():
      tables[:, i, others] = _classify_line(mask, layout, q_indices[i], k_indices[others])
  return visible, fully_visible


def _classify_line(
  mask: Callable, layout: str, queries: Int[np.ndarray, 'T'], key_blocks: Int[np.ndarray, 'J S']
) -> tuple[Bool[np.ndarray, 'J'], Bool[np.ndarray, 'J']]:
  """`classify_blocks` for one block of queries, `PAIRS` pairs at a time."""
  at_once = max(1, PAIRS // (len(queries) * key_blocks.shape[1]))
  parts = []
  for start in range(0, len(key_blocks), at_once):
    keys = key_blocks[start : start + at_once]
    certain, possible = mask.bounds(queries[:, None, None], keys[None], layout)
    parts.append((possible.any((0, 2)), certain.all((0, 2))))
  return tuple(map(np.concatenate, zip(*parts)))


def pad_to_blocks(
  grid: BlockGrid,
  q: Float[Array, 'B T H C'],
  k: Float[Array, 'B S K C'],
  v: Float[Array, 'B S K C2'],
  inputs: Any,
) -> tuple[Array, Array, Array, PyTree, Any]:
  """Pads to whole blocks.

  Returns:
    q, k, v, the learned inputs (score, bias, sinks), and the other inputs.
  """
  q, k, v = grid.pad_queries(q, 1), grid.pad_keys(k, 1), grid.pad_keys(v, 1)
  # Padded tokens get segment 0, which no query sees.
  other_inputs = inputs.replace(
    q_positions=grid.pad_queries(inputs.q_positions, 1),
    q_segments=grid.pad_queries(inputs.q_segments, 1),
    k_positions=grid.pad_keys(inputs.k_positions, 1),
    k_segments=grid.pad_keys(inputs.k_segments, 1),
    k_prefix=None if inputs.k_prefix is None else grid.pad_keys(inputs.k_prefix, 1),
    score=None,
    bias=None,
    sinks=None,
  )
  return q, k, v, (inputs.score, inputs.bias, inputs.sinks), other_inputs


def unpad(
  out: Float[Array, 'B T H C2'], log_sum_exp: Float[Array, 'B K G T'], T: int
) -> tuple[Float[Array, 'B T H C2'], Float[Array, 'B H T']]:
  """Undoes `pad_to_blocks` for the output and the log-sum-exp of the T unpadded queries."""
  return out[:, :T], log_sum_exp[..., :T].reshape(len(out), -1, T)


def merge_inputs(other_inputs: Any, learned: PyTree) -> Any:
  """Puts the learned inputs (score, bias, sinks) back beside the others."""
  score, bias, sinks = learned
  return other_inputs.replace(score=score, bias=bias, sinks=sinks)


def compare_documents(
  grid: BlockGrid, q_segments: Int[Array, 'B T'], k_segments: Int[Array, 'B S']
) -> tuple[Bool[Array, 'B I J'], Bool[Array, 'B I J']]:
  """(whether query block i and key block j of a row may share a document, whether all tokens are of one).

  Compares the ranges of segment ids, so that the first is exact or errs towards True.
  """

  def id_range(segments, size):
    segments = segments.reshape(len(segments), -1, size)
    low = jnp.where(segments > 0, segments, np.iinfo(np.int32).max).min(-1)
    is_one = (segments == segments[..., :1]).all(-1) & (segments[..., 0] > 0)
    return low, segments.max(-1), is_one

  q_low, q_high, q_is_one = (x[:, :, None] for x in id_range(q_segments, grid.queries))
  k_low, k_high, k_is_one = (x[:, None] for x in id_range(k_segments, grid.keys))
  return (q_low <= k_high) & (k_low <= q_high), q_is_one & k_is_one & (q_low == k_low)
