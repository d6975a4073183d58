"""A bracket of the time of a step, from its operations and the published peaks of the chip.

  time ≥ max(FLOPs / peak, memory traffic / memory bandwidth, bytes sent / bandwidth of the links used)

The roofline model (Williams et al. 2009), with a roof for the network. The bound assumes that every part runs
at its published peak and that all overlap; a real step is slower. The sum of the parts is the time if each
ran at its peak and none overlapped: a step below it overlaps well, one above it loses time to what is not
counted. Neither is a prediction.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfm.analysis.collectives import SENT_FRACTION, Collective
from tfm.analysis.hlo_cost import DeviceCost
from tfm.parallel.chip_specs import Chip


@dataclasses.dataclass(frozen=True)
class Bound:
  """Seconds that one device spends on each resource.

  Attributes:
    compute, memory: of matrix products, and of traffic to main memory.
    links: of all communication over links; axes: of the collectives over each combination of mesh axes.
    network: of communication between slices.
    host: of transfers to host memory, or back if that takes longer.
  """

  compute: float
  memory: float
  links: float
  network: float
  host: float
  axes: Mapping[str, float]

  @property
  def parts(self) -> dict[str, float]:
    """Resource → seconds."""
    return {name: getattr(self, name) for name in ('compute', 'memory', 'links', 'network', 'host')}

  @property
  def seconds(self) -> float:
    return max(self.parts.values())

  @property
  def serial_seconds(self) -> float:
    """The time if nothing overlapped."""
    return sum(self.parts.values())

  @property
  def by(self) -> str:
    """The resource that takes longest."""
    longest = max(self.parts, key=self.parts.get)
    if longest == 'links':
      return f'links ({max(self.axes, key=self.axes.get)})'
    return dict(network='network between slices', host='transfers to the host').get(longest, longest)


class Slices(NamedTuple):
  """How many slices, connected by the network, the mesh axis `axis` spans."""

  count: int = 1
  axis: str = 'data'


def compute_bound(
  chip: Chip,
  cost: DeviceCost,
  collectives: Sequence[Collective],
  link_fractions: Mapping[tuple[str, tuple[str, ...]], float] = {},
  slices: Slices = Slices(),
) -> Bound:
  """The time bound of a step on one device.

  Args:
    chip: the share of one device.
    cost: of one device.
    link_fractions: (kind, axes) → fraction of the chip's links that these collectives can use; 1 by default.
    slices: of an exchange over their axis each device sends its share to the other slices once, and the
      rest stays within its slice, as libtpu compiles it; other platforms are counted alike.
  """
  axes, total, network = {}, 0.0, sum(c.sent for c in collectives if c.between)
  has_slice_transfers = any(c.between for c in collectives)
  for c in (c for c in collectives if not c.between):
    spans_slices = (
      slices.count > 1
      and not has_slice_transfers
      and slices.axis in c.axes
      and c.kind != 'collective-permute'
    )
    group = c.group // slices.count if spans_slices else c.group
    sent = c.bytes * SENT_FRACTION[c.kind](group) if group > 1 or not spans_slices else 0.0
    if spans_slices:
      network += c.bytes / max(group, 1) * SENT_FRACTION[c.kind](slices.count)
    name, seconds = ' '.join(c.axes), sent / (chip.links * link_fractions.get((c.kind, c.axes), 1.0))
    axes[name] = axes.get(name, 0.0) + seconds
    total += sent
  # Collectives over different axes may use different links at the same time.
  links = max(total / chip.links, *axes.values(), 0.0)
  return Bound(
    compute=cost.flops / chip.flops,
    memory=cost.bytes / chip.bandwidth,
    links=links,
    network=network / chip.network,
    host=max(cost.to_host, cost.from_host) / chip.host,
    axes=axes,
  )
