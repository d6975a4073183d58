"""What a mesh must divide, and the nearest mesh that does."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

from tfm.parallel import mesh as meshes


# Of equally near meshes with as few axes, which that was asked for is to be kept, and which that was not is to be left out,
# the first before the others: copies of the model are the easiest to have more or fewer of.
REQUESTED_AXIS_PRIORITY = 'tensor', 'sequence', 'expert', 'stage', 'fsdp', 'data'
UNREQUESTED_AXIS_PRIORITY = 'expert', 'stage', 'sequence', 'tensor', 'fsdp', 'data'


@dataclasses.dataclass(frozen=True)
class DivisibilityConstraint:
  """Mesh axes whose sizes must together divide something.

  Attributes:
    size: what is divided; axes: of the mesh.
    said: into how many parts → a sentence that names the field, says that they do not divide it, and what would do.
  """

  size: int
  axes: tuple[str, ...]
  message: Callable[[int], str]

  def shard_count(self, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[axis] for axis in self.axes)

  def is_satisfied(self, sizes: Mapping[str, int]) -> bool:
    return self.size % self.shard_count(sizes) == 0

  def validate(self, sizes: Mapping[str, int]) -> None:
    """Raises ValueError unless it is met."""
    if not self.is_satisfied(sizes):
      raise ValueError(self.message(self.shard_count(sizes)))


@dataclasses.dataclass(frozen=True)
class RangeConstraint(DivisibilityConstraint):
  """Mesh axes whose sizes must together lie between `least` and `size`."""

  least: int = 1

  def is_satisfied(self, sizes: Mapping[str, int]) -> bool:
    return self.least <= self.shard_count(sizes) <= self.size


@dataclasses.dataclass(frozen=True)
class SliceConstraint(DivisibilityConstraint):
  """The one mesh axis that a slow network between `size` slices carries, whose size must be a multiple."""

  message: None = None

  def is_satisfied(self, sizes: Mapping[str, int]) -> bool:
    return self.shard_count(sizes) % self.size == 0

  def validate(self, sizes: Mapping[str, int]) -> None:
    meshes.validate_slices(sizes, self.size, *self.axes)


@dataclasses.dataclass(frozen=True)
class MeshRequest:
  """A mesh as somebody asked for it, with what is known of what it must divide.

  Attributes:
    asked: axis → size; devices: how many there are.
    needs: what it must divide.
  """

  requested: Mapping[str, int]
  devices: int
  constraints: tuple[DivisibilityConstraint, ...] = ()

  def sizes(self) -> dict[str, int]:
    """Every axis with its size.

    Raises:
      ValueError: if there are not as many devices, or a need is not met.
    """
    sizes = meshes.resolve(self.requested, self.devices)
    for constraint in self.constraints:
      constraint.validate(sizes)
    return sizes

  def nearest(self) -> dict[str, int] | None:
    """Of all meshes over the devices that meet the needs, the one whose sizes are the fewest doublings away from those
    asked for; an axis that takes what is left is as near with any. None if there is none.
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
    """The end of a sentence that refuses it."""
    here, near = f'{self.devices} device{"s" * (self.devices != 1)}', self.nearest()
    if near is None:
      return f'no mesh of {here} works'
    return f'the nearest mesh of {here} that works is {meshes.format_sizes(near)}'


def factorizations(devices: int, axes: tuple[str, ...]) -> Iterator[dict[str, int]]:
  """Every mesh of these axes over so many devices."""
  if len(axes) == 1:
    yield {axes[0]: devices}
    return
  for size in divisors(devices):
    for rest in factorizations(devices // size, axes[1:]):
      yield {axes[0]: size} | rest


@functools.cache
def divisors(n: int) -> tuple[int, ...]:
  return tuple(d for d in range(1, n + 1) if n % d == 0)
