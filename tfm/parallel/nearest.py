"""What a mesh must divide, and the nearest mesh that does."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping

from tfm.parallel import mesh as meshes


# Of equally near meshes with as few axes, which that was asked for is to be kept, and which that was not is to be left out,
# the first before the others: copies of the model are the easiest to have more or fewer of.
KEPT = 'tensor', 'sequence', 'expert', 'stage', 'fsdp', 'data'
LEFT_OUT = 'expert', 'stage', 'sequence', 'tensor', 'fsdp', 'data'


@dataclasses.dataclass(frozen=True)
class Need:
  """Mesh axes whose sizes must together divide something.

  Attributes:
    size: what is divided; axes: of the mesh.
    said: into how many parts → a sentence that names the field, says that they do not divide it, and what would do.
  """

  size: int
  axes: tuple[str, ...]
  said: Callable[[int], str]

  def parts(self, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes[axis] for axis in self.axes)

  def met(self, sizes: Mapping[str, int]) -> bool:
    return self.size % self.parts(sizes) == 0

  def check(self, sizes: Mapping[str, int]) -> None:
    """Raises ValueError unless it is met."""
    if not self.met(sizes):
      raise ValueError(self.said(self.parts(sizes)))


@dataclasses.dataclass(frozen=True)
class Limits(Need):
  """Mesh axes whose sizes must together lie between `least` and `size`."""

  least: int = 1

  def met(self, sizes: Mapping[str, int]) -> bool:
    return self.least <= self.parts(sizes) <= self.size


@dataclasses.dataclass(frozen=True)
class Slices(Need):
  """The one mesh axis that a slow network between `size` slices carries, whose size must be a multiple."""

  said: None = None

  def met(self, sizes: Mapping[str, int]) -> bool:
    return self.parts(sizes) % self.size == 0

  def check(self, sizes: Mapping[str, int]) -> None:
    meshes.check_slices(sizes, self.size, *self.axes)


@dataclasses.dataclass(frozen=True)
class Wish:
  """A mesh as somebody asked for it, with what is known of what it must divide.

  Attributes:
    asked: axis → size; devices: how many there are.
    needs: what it must divide.
  """

  asked: Mapping[str, int]
  devices: int
  needs: tuple[Need, ...] = ()

  def sizes(self) -> dict[str, int]:
    """Every axis with its size.

    Raises:
      ValueError: if there are not as many devices, or a need is not met.
    """
    sizes = meshes.resolve(self.asked, self.devices)
    for need in self.needs:
      need.check(sizes)
    return sizes

  def nearest(self) -> dict[str, int] | None:
    """Of all meshes over the devices that meet the needs, the one whose sizes are the fewest doublings away from those
    asked for; an axis that takes what is left is as near with any. None if there is none.
    """

    def away(sizes):
      steps = {
        axis: abs(math.log2(sizes[axis] / size)) for axis in KEPT if (size := self.asked.get(axis, 1)) >= 1
      }
      named = [steps[axis] for axis in KEPT if self.asked.get(axis, 1) > 1]
      new = sum(size > 1 and axis != 'data' and self.asked.get(axis, 1) == 1 for axis, size in sizes.items())
      return round(sum(steps.values()), 6), new, *named, *(steps.get(axis, 0) for axis in LEFT_OUT)

    needs = {(type(need), need.size, need.axes): need for need in self.needs}.values()
    fit = (
      sizes
      for sizes in factorisations(self.devices, tuple(meshes.AXES))
      if all(need.met(sizes) for need in needs)
    )
    return min(fit, key=away, default=None)

  def instead(self) -> str:
    """The end of a sentence that refuses it."""
    here, near = f'{self.devices} device{"s" * (self.devices != 1)}', self.nearest()
    if near is None:
      return f'no mesh of {here} works'
    return f'the nearest mesh of {here} that works is {meshes.words(near)}'


def factorisations(devices: int, axes: tuple[str, ...]) -> Iterator[dict[str, int]]:
  """Every mesh of these axes over so many devices."""
  if len(axes) == 1:
    yield {axes[0]: devices}
    return
  for size in divisors(devices):
    for rest in factorisations(devices // size, axes[1:]):
      yield {axes[0]: size} | rest


@functools.cache
def divisors(n: int) -> tuple[int, ...]:
  return tuple(d for d in range(1, n + 1) if n % d == 0)
