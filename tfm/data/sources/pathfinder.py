"""Pathfinder: are two points joined by a dashed path?"""

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Iterator

import numpy as np

from tfm.data.corpus import RawDocuments
from tfm.data.documents import Document
from tfm.data.sources import protocol
from tfm.errors import importing_extra
from tfm.spec import NonNegativeInt, PositiveInt, Size


with importing_extra('images'):
  import PIL.Image
  import PIL.ImageDraw


# In pixels of an image, like those of the published images of 32 × 32 pixels.
DASH, GAP, THICKNESS, MARKER, MARGIN, EDGE = 1.6, 1.0, 0.7, 1.2, 2.7, 1.7
TOLERANCE = 1.0  # between the distances of the ends of one path and of two
MAX_TURN = 0.6  # radians between two dashes
MAX_TURNS = 6  # of drawing a dash
DISTRACTORS = 4
SCALE = 4  # drawn larger, and then averaged
MAX_TRIES = 1000  # of drawing a path, and an image
SHARD = 500  # images

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Pathfinder(protocol.StoredSource):
  """Gray images of two dashed paths among shorter ones, and two discs: both at the ends of one path, label 1,
  or each at an end of another, label 0 (Linsley et al. 2018; Tay et al. 2020, Long Range Arena, §2.2.5, where
  images have 32 × 32 pixels, which are read one by one). Guessing is right in half.

  A path turns by at most 0.6 radians between dashes, stays in the image, and keeps the ends of its dashes 2.7
  pixels away from those of the others and of itself. In every image the discs of both labels would be equally
  far apart, within a pixel, so that the distance tells nothing. Drawn anew; the arena's files differ in
  details.

  Attributes:
    size: pixels per side.
    dashes: of the two paths; the arena has 6, 9 and, in the reported results, 14. The four other paths have a
      third of them.
    examples: how many images, in all splits together.
    seed: of the random images.
  """

  fields = ('image', 'label')

  size: Size = 32
  dashes: Size = 6
  examples: PositiveInt = 20_000
  seed: NonNegativeInt = 0

  def __post_init__(self):
    if self.dashes < 3:
      raise ValueError(f'dashes={self.dashes} must be at least 3')
    if self.dashes * (DASH + GAP) > 2 * (self.size - 2 * MARKER):
      raise ValueError(
        f'size={self.size} has no room for paths of dashes={self.dashes}; use at least '
        f'size={math.ceil(self.dashes * (DASH + GAP) / 2 + 2 * MARKER)}'
      )

  @property
  def image_shape(self):
    return self.size, self.size, 1

  def raw_documents(self) -> RawDocuments:
    starts = range(0, self.examples, SHARD)
    readers = [functools.partial(self.read, start) for start in starts]
    return RawDocuments(self.spec, readers, (), self.fields, self.examples)

  def read(self, start: int) -> Iterator[Document]:
    """The images from one number on."""
    for index in range(start, min(start + SHARD, self.examples)):
      image, label = self.example(random.Random(f'{self.seed} {index}'))
      yield None, image, str(label)

  def example(self, draw: random.Random) -> tuple[np.ndarray, int]:
    """Returns a random image, uint8 [H, W, 1], and whether its discs are joined."""
    label = draw.randrange(2)
    for _ in range(MAX_TRIES):
      if paths := self.draw_paths(draw):
        (*_, a), (*_, b) = one, other = paths[:2]
        ends, distance = (one[0], a), math.dist(one[0], a)
        apart = min(itertools.product(ends, (other[0], b)), key=lambda pair: abs(math.dist(*pair) - distance))
        # Whatever the label: so the distance of the discs does not tell it.
        if abs(math.dist(*apart) - distance) < TOLERANCE:
          return self.draw_image(paths, ends if label else apart), label
    raise ValueError(f'{self.spec}: no image with such paths was found; use a greater size or fewer dashes')

  def draw_paths(self, draw: random.Random) -> list[list[Point]] | None:
    """Returns paths, each a list of the ends of its dashes, two for each; None if they leave no room."""
    paths, taken = [], []
    for dashes in (self.dashes, self.dashes, *[max(self.dashes // 3, 1)] * DISTRACTORS):
      for _ in range(MAX_TRIES):
        if path := self.draw_path(draw, dashes, taken):
          break
      else:
        return None
      paths.append(path)
      taken += path
    return paths

  def draw_path(self, draw: random.Random, dashes: int, taken: list[Point]) -> list[Point] | None:
    """Returns the ends of the dashes of a path that keeps away from the points of others; None if its way is
    barred.
    """
    path = []
    start = draw.uniform(EDGE, self.size - EDGE), draw.uniform(EDGE, self.size - EDGE)
    angle = draw.uniform(0, 2 * math.pi)
    for _ in range(dashes):
      for _ in range(MAX_TURNS):
        turned = angle + draw.uniform(-MAX_TURN, MAX_TURN)
        dash = _move(start, turned, GAP if path else 0), _move(start, turned, GAP + DASH)
        # Its own last dash is near by construction.
        if all(self.is_free(point, taken + path[:-2]) for point in dash):
          break
      else:
        return None
      path += dash
      start, angle = dash[1], turned
    return path

  def is_free(self, point: Point, taken: list[Point]) -> bool:
    """Whether a point lies in the image, away from others."""
    return all(EDGE <= x <= self.size - EDGE for x in point) and all(
      math.dist(point, other) >= MARGIN for other in taken
    )

  def draw_image(self, paths: list[list[Point]], discs: tuple[Point, Point]) -> np.ndarray:
    """Returns the picture of paths, with discs, uint8 [H, W, 1]."""
    picture = PIL.Image.new('L', (self.size * SCALE, self.size * SCALE))
    pen = PIL.ImageDraw.Draw(picture)
    for path in paths:
      for start, end in zip(path[::2], path[1::2]):
        line = [tuple(SCALE * x for x in point) for point in (start, end)]
        pen.line(line, fill=255, width=round(THICKNESS * SCALE))
    for x, y in discs:
      pen.ellipse([SCALE * (a + b) for b in (-MARKER, MARKER) for a in (x, y)], fill=255)
    return np.asarray(picture.reduce(SCALE))[:, :, None]


def _move(point: Point, angle: float, distance: float) -> Point:
  return point[0] + distance * math.cos(angle), point[1] + distance * math.sin(angle)
