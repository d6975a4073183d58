"""Images: files and arrays as uint8 [H, W, C], kept without loss, and a split of them with their classes."""

import dataclasses
import io
import pathlib
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageOps


MODES = {1: 'L', 3: 'RGB'}  # channels → what Pillow calls it


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
  """A split's images and what is to be told of them.

  Attributes:
    name: source and split, for messages.
    images: random access to uint8 [H, W, C].
    classes: int32 [documents].
    names: of the classes, in the order of their numbers.
  """

  name: str
  images: Sequence[np.ndarray]
  classes: np.ndarray
  names: tuple[str, ...]

  @property
  def documents(self) -> int:
    return len(self.classes)

  @property
  def targets(self) -> int:
    """What there is to tell in one epoch."""
    return self.documents


def check(size: int, channels: int) -> None:
  """Refuses what is no size, or a number of channels that images have not."""
  if size < 1:
    raise ValueError(f'size={size} must be at least 1 pixel')
  if channels not in MODES:
    raise ValueError(f'channels={channels} must be 1 (gray) or 3 (red, green, blue)')


def fitted(file: pathlib.Path | bytes, size: int, channels: int, where: str) -> np.ndarray:
  """The image of a file, or of its bytes: its middle, as large a square as it has, in size × size pixels.

  Raises:
    ValueError: if it cannot be read, naming `where` it stands.
  """
  try:
    with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
      made = image.convert(MODES[channels])
  except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
    raise ValueError(f'{where} cannot be read as an image: {error}') from error
  if made.size != (size, size):
    made = ImageOps.fit(made, (size, size), Image.Resampling.BICUBIC)
  return np.asarray(made).reshape(size, size, channels)


def encoded(image: np.ndarray) -> io.BytesIO:
  """An image as PNG."""
  file = io.BytesIO()
  Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, 'png')
  file.seek(0)
  return file


def decoded(data: bytes) -> np.ndarray:
  """The image [H, W, C] of a PNG's bytes."""
  with Image.open(io.BytesIO(data)) as image:
    return np.asarray(image).reshape(image.height, image.width, -1)
