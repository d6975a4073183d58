"""Which links a collective can use, by hand for rings, rows and groups between each other."""

import types

import numpy as np
import pytest

from tfm.analysis import torus
from tfm.analysis.collectives import Collective


def chips(*sizes: int) -> np.ndarray:
  """Devices of a torus in row-major order of their coordinates."""
  return np.array(
    [types.SimpleNamespace(coords=(*at, *[0] * (3 - len(at))), slice_index=0) for at in np.ndindex(*sizes)],
    object,
  )


def fraction(
  devices: np.ndarray, shape: dict[str, int], axes: str, dims: int, kind: str = 'all-gather'
) -> float:
  mesh = types.SimpleNamespace(devices=devices.reshape(*shape.values()), axis_names=tuple(shape), shape=shape)
  names = tuple(axes.split())
  found = torus.usable_link_fractions(mesh, dims, [Collective(kind, names, 2, 1, 1)])
  return found[kind, names]


@pytest.mark.parametrize(
  'sizes, shape, axes, expected',
  [
    # Rings along all dimensions of a whole pod, and of cubes of 4 × 4 × 4.
    ((16, 16), dict(fsdp=256), 'fsdp', 4 / 4),
    ((4, 4, 8), dict(fsdp=128), 'fsdp', 6 / 6),
    # v5e:4x8 and 8x8 are not closed: a chip at a corner has two links.
    ((4, 8), dict(fsdp=32), 'fsdp', 2 / 4),
    ((8, 8), dict(data=2, fsdp=32), 'fsdp', 2 / 4),
    # Two rows of 16: rings along the rows, one link between them.
    ((16, 16), dict(data=8, fsdp=32), 'fsdp', 3 / 4),
    # The same chips 8 rows apart: the groups between share the rings along that dimension.
    ((16, 16), dict(fsdp=2, data=8, tensor=16), 'fsdp tensor', (2 / 8 + 2) / 4),
    ((16, 16), dict(data=8, fsdp=2, tensor=16), 'tensor', 2 / 4),
    ((16, 16), dict(data=8, fsdp=2, tensor=16), 'data', (2 / 2) / 4),
    # Less than a cube is not closed.
    ((2, 2, 2), dict(fsdp=8), 'fsdp', 3 / 6),
    ((4, 4, 2), dict(data=4, fsdp=8), 'data', 1 / 6),
  ],
)
def test_links_of_rings_and_rows(sizes, shape, axes, expected):
  assert fraction(chips(*sizes), shape, axes, len(sizes)) == pytest.approx(expected)


def loads(row: list[int], closed: bool) -> float:
  """The most parts that cross a link if each chip sends one n-th of its array to each other of its group."""
  size, crossed = len(row), {}
  for a in range(size):
    n = row.count(row[a])
    for b in (b for b in range(size) if b != a and row[b] == row[a]):
      ahead = (b - a) % size
      ways = [range(a, b) if b > a else range(b, a)] if not closed else []
      up = [b > a] if not closed else []
      if closed:
        # The shorter way; of two equally long ones half over each.
        if 2 * ahead <= size:
          ways.append([(a + i) % size for i in range(ahead)])
          up.append(True)
        if 2 * ahead >= size:
          ways.append([(b + i) % size for i in range(size - ahead)])
          up.append(False)
      for way, direction in zip(ways, up):
        for link in way:
          crossed[link, direction] = crossed.get((link, direction), 0) + 1 / n / len(ways)
  return max(crossed.values())


@pytest.mark.parametrize(
  'row, closed',
  [
    ([0] * 8, False),
    ([0] * 16, True),
    ([0, 0], False),
    ([0, 0, 0, 0, 1, 1, 1, 1], False),
    ([0, 1, 0, 1], False),
    ([0, 1] * 8, True),
    ([0, 1, 2, 3] * 4, True),
    ([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4, True),
  ],
)
def test_an_all_to_all_loads_the_links_that_its_parts_pass(row, closed):
  """Against every part on its way, link by link."""
  _, load = torus.row_use(np.array(row), 0, closed)
  assert load == pytest.approx(loads(row, closed))


def test_an_all_to_all_over_a_ring_takes_an_eighth_of_its_chips_times_an_array():
  """On 16 of 16 × 16 chips: a sixteenth to each other one, 4 hops on average, over two of four links."""
  seconds = (15 / 16) / fraction(chips(16, 16), dict(data=16, fsdp=16), 'fsdp', 2, 'all-to-all') / 4
  assert seconds == pytest.approx(16 / 8)


def test_a_collective_over_slices_uses_the_links_of_one():
  devices = np.concatenate([chips(16, 16), chips(16, 16)])
  for one in devices[256:]:
    one.slice_index = 1
  assert fraction(devices, dict(data=2, fsdp=256), 'data fsdp', 2) == 1
  assert fraction(devices, dict(data=16, fsdp=32), 'fsdp', 2) == 3 / 4


def test_switches_have_no_links():
  assert torus.usable_link_fractions(types.SimpleNamespace(devices=chips(2)), 0, []) == {}
