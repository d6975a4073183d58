"""Images of which nothing is known but their shape."""

import dataclasses
import pathlib

from tfm.data import corpus
from tfm.data.sources import protocol


@dataclasses.dataclass(frozen=True)
class Shape(protocol.Source):
  """What a published model of images says of its data; another source must take its place before there is
  anything to learn.

  Attributes:
    height, width: in pixels; channels: of a pixel.

  Raises:
    ValueError: for a side below 1, or no channel.
  """

  fields = ('image', 'label')

  height: int
  width: int
  channels: int = 3

  def __post_init__(self):
    for name in ('height', 'width', 'channels'):
      if getattr(self, name) < 1:
        raise ValueError(f'{name}={getattr(self, name)} must be at least 1')

  @property
  def image_shape(self):
    return self.height, self.width, self.channels

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    raise ValueError(
      f"{self.spec} says only what images are like, and has none; 'folder(…)' or 'images(…)' has"
    )
