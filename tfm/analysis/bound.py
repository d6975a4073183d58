"""The least time that a step can take, by what it does and what the makers say that the chip can do.

  time ≥ max(products / peak, bytes of memory / its bandwidth, bytes sent / the links that can carry them)

The roofline model (Williams et al. 2009), with a roof for the network. Each part would have to run at its published peak, and
all at once; a real step is slower. So this tells what bounds a step, and what cannot be reached, not what will be.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jax.sharding import Mesh

from tfm.analysis.collectives import SENT, Collective
from tfm.parallel.chips import Chip


@dataclasses.dataclass(frozen=True)
class Bound:
  """Seconds of one device, each alone.

  Attributes:
    compute, memory: of products, and of the main memory.
    links: of all that goes to neighbours; axes: of the collectives over some mesh axes, by their names.
    network: of what goes from slice to slice.
  """

  compute: float
  memory: float
  links: float
  network: float
  axes: Mapping[str, float]

  @property
  def seconds(self) -> float:
    return max(self.compute, self.memory, self.links, self.network)

  @property
  def by(self) -> str:
    """What takes longest."""
    parts = dict(compute=self.compute, memory=self.memory, links=self.links, network=self.network)
    longest = max(parts, key=parts.get)
    if longest != 'links':
      return dict(compute='compute', memory='memory', network='network between slices')[longest]
    return f'links ({max(self.axes, key=self.axes.get)})'


def bound(
  chip: Chip,
  products: float,
  moved: float,
  collectives: Sequence[Collective],
  reach: Mapping[tuple[str, ...], float] = {},
  slices: int = 1,
  slow: str = 'data',
) -> Bound:
  """The bound of a step of one device.

  Args:
    chip: a device's share of it.
    products, moved: FLOPs, and bytes of memory, of one device.
    reach: the part of the chip's links that the collectives over some axes can use; all unless told.
    slices: over which the axis `slow` goes: of what is exchanged over it, each device of a slice sends its share once to
      other slices, and the rest stays within; as libtpu has it compiled, and as it is counted for others.
  """
  axes, total, network = {}, 0.0, sum(one.sent for one in collectives if one.between)
  told = any(one.between for one in collectives)
  for one in (one for one in collectives if not one.between):
    crosses = slices > 1 and not told and slow in one.axes and one.kind != 'collective-permute'
    within = one.group // slices if crosses else one.group
    sent = one.bytes * SENT[one.kind](within) if within > 1 or not crosses else 0.0
    if crosses:
      network += one.bytes / max(within, 1) * SENT[one.kind](slices)
    name, seconds = ' '.join(one.axes), sent / (chip.links * reach.get(one.axes, 1.0))
    axes[name] = axes.get(name, 0.0) + seconds
    total += sent
  # What goes over different axes may go over different links at once.
  links = max(total / chip.links, *axes.values(), 0.0)
  return Bound(products / chip.flops, moved / chip.bandwidth, links, network / chip.network, axes)


def reaches(mesh: Mesh, dims: int, collectives: Sequence[Collective]) -> dict[tuple[str, ...], float]:
  """The part of a chip's links that lead along what some mesh axes are laid over, for the axes of each collective: those of
  two of three dimensions of a torus are two thirds of all."""
  first = mesh.devices.flat[0]
  if not dims or getattr(first, 'coords', None) is None:
    return {}
  coords = np.array([device.coords for device in mesh.devices.flat]).reshape(*mesh.devices.shape, -1)
  found = {}
  for one in collectives:
    here = tuple(slice(None) if axis in one.axes else 0 for axis in mesh.axis_names)
    places = coords[here].reshape(-1, coords.shape[-1])
    along = int((places != places[0]).any(0).sum())
    found[one.axes] = min(1.0, along / dims) if along else 1.0
  return found
