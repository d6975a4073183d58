"""The constraints on mesh sizes, and the nearest mesh that satisfies them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

from tfm.parallel import mesh as meshes


# Tie-breaks between equally near meshes: requested axes to preserve and unrequested axes to avoid, most
# important first. The size of `data` is the easiest to change.
REQUESTED_AXIS_PRIORITY = 'tensor', 'ulysses', 'sequence', 'expert', 'stage', 'fsdp', 'data'
UNREQUESTED_AXIS_PRIORITY = 'expert', 'stage', 'ulysses', 'sequence', 'tensor', 'fsdp', 'data'


@dataclasses.dataclass(frozen=True)
class DivisibilityConstraint:
  """The product of some mesh axes must divide a size.

  Attributes:
    size: to be divided; axes: of the mesh.
    message: number of shards → an error message that names the field, the conflict and a remedy.
  """

  size: int
  axes: tuple[str, ...]
  message: Callable[[int], str]

  def shard_count(self, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[axis] for axis in self.axes)

  def is_satisfied(self, sizes: Mapping[str, int]) -> bool:
    return self.size % self.shard_count(sizes) == 0

  def validate(self, sizes: Mapping[str, int]) -> None:
    """Raises ValueError unless the sizes satisfy the constraint."""
    if not self.is_satisfied(sizes):
      raise ValueError(self.message(self.shard_count(sizes)))


@dataclasses.dataclass(frozen=True)
class RangeConstraint(DivisibilityConstraint):
  """The product of some mesh axes must lie between `least` and `size`."""

  least: int = 1

  def is_satisfied(self, sizes: Mapping[str, int]) -> bool:
    return self.least <= self.shard_count(sizes) <= self.size


@dataclasses.dataclass(frozen=True)
class SliceConstraint(DivisibilityConstraint):
  """The size of the mesh axis that spans slices must be a multiple of their number, `size`."""

  message: None = None

  def is_satisfied(self, sizes: Mapping[str, int]) -> bool:
    return self.shard_count(sizes) % self.size == 0

  def validate(self, sizes: Mapping[str, int]) -> None:
    meshes.validate_slices(sizes, self.size, *self.axes)


@dataclasses.dataclass(frozen=True)
class MeshRequest:
  """Requested mesh sizes, with the constraints on them.

  Attributes:
    requested: axis → size, -1 for the remaining devices; devices: their number.
    constraints: that the mesh must satisfy.
  """

  requested: Mapping[str, int]
  devices: int
  constraints: tuple[DivisibilityConstraint, ...] = ()

  def sizes(self) -> dict[str, int]:
    """The size of every axis.

    Raises:
      ValueError: if the sizes do not fit the devices, or violate a constraint.
    """
    sizes = meshes.resolve(self.requested, self.devices)
    for constraint in self.constraints:
      constraint.validate(sizes)
    return sizes

  def nearest(self) -> dict[str, int] | None:
    """The valid mesh over the devices that is the fewest doublings of axis sizes away from the request.

    An axis of -1 may take any size. None if no mesh is valid.
    """

    def distance(sizes):
      steps = {
        axis: abs(math.log2(sizes[axis] / size))
        for axis in REQUESTED_AXIS_PRIORITY
        if (size := self.requested.get(axis, 1)) >= 1
      }
      requested_steps = [steps[axis] for axis in REQUESTED_AXIS_PRIORITY if self.requested.get(axis, 1) > 1]
      added_axes = sum(
        size > 1 and axis != 'data' and self.requested.get(axis, 1) == 1 for axis, size in sizes.items()
      )
      return (
        round(sum(steps.values()), 6),
        added_axes,
        *requested_steps,
        *(steps.get(axis, 0) for axis in UNREQUESTED_AXIS_PRIORITY),
      )

    constraints = {
      (type(constraint), constraint.size, constraint.axes): constraint for constraint in self.constraints
    }.values()
    valid_meshes = (
      sizes
      for sizes in factorizations(self.devices, tuple(meshes.AXES))
      if all(constraint.is_satisfied(sizes) for constraint in constraints)
    )
    return min(valid_meshes, key=distance, default=None)

  def describe_nearest(self) -> str:
    """The nearest valid mesh, as the end of an error message."""
    devices, nearest = f'{self.devices} device{"s" * (self.devices != 1)}', self.nearest()
    if nearest is None:
      return f'no mesh of {devices} is valid'
    return f'the nearest valid mesh of {devices} is {meshes.format_sizes(nearest)}'


def factorizations(devices: int, axes: tuple[str, ...]) -> Iterator[dict[str, int]]:
  """Every assignment of sizes to the axes whose product is the device count."""
  if len(axes) == 1:
    yield {axes[0]: devices}
    return
  for size in divisors(devices):
    for rest in factorizations(devices // size, axes[1:]):
      yield {axes[0]: size} | rest


@functools.cache
def divisors(n: int) -> tuple[int, ...]:
  """The divisors of n in increasing order."""
  return tuple(d for d in range(1, n + 1) if n % d == 0)
