"""A placeholder for images of a given shape."""

import dataclasses

from tfm.data.sources import protocol
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Shape(protocol.StoredSource):
  """The data of a published image model, of which only the shape is known; replace it by another source for
  training.

  Attributes:
    height, width: in pixels; channels: per pixel.

  Raises:
    ValueError: for a number below 1.
  """

  fields = ('image', 'label')

  height: Size
  width: Size
  channels: Size = 3

  def __post_init__(self):
    for name in ('height', 'width', 'channels'):
      if getattr(self, name) < 1:
        raise ValueError(f'{name}={getattr(self, name)} must be at least 1')

  @property
  def image_shape(self):
    return self.height, self.width, self.channels

  def raw_documents(self):
    raise ValueError(
      f"{self.spec} defines only the shape of images and has no data; use 'folder(…)' or 'images(…)'"
    )
