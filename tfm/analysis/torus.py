"""The links of a torus of chips that a collective over some mesh axes can use.

A collective runs along the rows of the torus in which its group lies. Along one dimension a chip sends over
both of its links if the group closes to a ring, and over one at the end of a row that does not (Austin et al.
2025, "How to Scale Your Model", ch. 3); groups that lie between each other's chips share the links of a row.
"""

import math
from collections.abc import Sequence

import numpy as np
from jax.sharding import Mesh

from tfm.analysis.collectives import SENT_FRACTION, Collective


def wraparound(sizes: Sequence[int]) -> tuple[bool, ...]:
  """For each dimension of a slice, whether its last chip is linked to the first.

  In three dimensions (v4, v5p, 7x) optical switches close slices of whole cubes of 4 × 4 × 4 chips; in two
  (v5e, v6e) a dimension is closed where it has all 16 chips of a pod.
  """
  if len(sizes) == 2:
    return tuple(size == 16 for size in sizes)
  return (all(size % 4 == 0 for size in sizes),) * len(sizes)


def usable_link_fractions(
  mesh: Mesh, dims: int, collectives: Sequence[Collective]
) -> dict[tuple[str, tuple[str, ...]], float]:
  """(kind, axes) → the fraction of a chip's links over which that collective sends.

  Of an all-to-all it is less than of a gather: its parts pass through the chips between, a quarter of a ring
  on average, and take the links there. Empty for devices without coordinates and for switches (`dims` = 0).
  """
  first = mesh.devices.flat[0]
  if not dims or getattr(first, 'coords', None) is None:
    return {}
  coords = np.array([device.coords for device in mesh.devices.flat])[:, :dims]
  slice_ids = np.array([getattr(device, 'slice_index', None) or 0 for device in mesh.devices.flat])
  here = slice_ids == slice_ids[0]
  fractions = {}
  for kind, axes in {(c.kind, c.axes) for c in collectives}:
    grid = np.full(coords.max(0) + 1, -1)
    grid[tuple(coords[here].T)] = group_ids(mesh, axes)[here]
    rows = [row_use(grid, dim, closed) for dim, closed in enumerate(wraparound(grid.shape))]
    links = sum(usable for usable, _ in rows)
    if kind == 'all-to-all' or kind == 'ragged-all-to-all':
      sent = SENT_FRACTION[kind](math.prod(mesh.shape[axis] for axis in axes))
      longest = max(load for _, load in rows)
      links = sent / longest if longest else 0
    fractions[kind, axes] = min(1.0, links / (2 * dims)) or 1.0
  return fractions


def group_ids(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
  """For each device of the flat mesh the number of its group along `axes`."""
  sizes = [1 if axis in axes else mesh.devices.shape[i] for i, axis in enumerate(mesh.axis_names)]
  ids = np.arange(math.prod(sizes)).reshape(sizes)
  return np.broadcast_to(ids, mesh.devices.shape).reshape(-1)


def row_use(grid: np.ndarray, dim: int, closed: bool) -> tuple[float, float]:
  """(links of a chip, load of a link), the worst of all rows of the grid along one dimension.

  Args:
    grid: coordinates → number of the group of that chip.
    closed: whether the rows are rings.

  Returns:
    The links that a chip can use for a gather, 0 if no group has two chips in a row; and the part of a chip's
    array that crosses the busiest link in an all-to-all.
  """
  rows = np.unique(np.moveaxis(grid, dim, -1).reshape(-1, grid.shape[dim]), axis=0)
  links, load = math.inf, 0.0
  for row in rows:
    places = {group: np.flatnonzero(row == group) for group in np.unique(row) if group >= 0}
    places = {group: at for group, at in places.items() if len(at) > 1}
    if not places:
      continue
    rings = {group: closed and is_ring(at, len(row)) for group, at in places.items()}
    # The groups whose chips lie on both sides of a link share it.
    passing = np.zeros(len(row), int)
    for group, at in places.items():
      passing[slice(None) if rings[group] else slice(at[0], at[-1])] += 1
    for group, at in places.items():
      shared, ways, n = passing[at[0] : at[-1]].max(), 2 if rings[group] else 1, len(at)
      links = min(links, ways / shared)
      load = max(load, (n // 2) * (n - n // 2) / n * shared / ways)
  return (0.0 if math.isinf(links) else links), load


def is_ring(at: np.ndarray, size: int) -> bool:
  """Whether chips at these places of a ring of `size` are equally far from each other all around."""
  return len(set(np.diff([*at, at[0] + size]).tolist())) == 1
