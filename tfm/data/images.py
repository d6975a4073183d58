"""Images as uint8 [H, W, C]: reading, lossless storage, and a split of images with their classes."""

import dataclasses
import io
import pathlib
from collections.abc import Sequence

import numpy as np

from tfm.data.tokens import Tokens
from tfm.errors import importing_extra


MODES = {1: 'L', 3: 'RGB'}  # channels → Pillow's mode


@dataclasses.dataclass(frozen=True, eq=False)
class Images:
  """The images of a split and their classes.

  Attributes:
    name: source and split, for messages.
    images: random access to uint8 [H, W, C], or to floats where they are latents.
    classes: int32 [documents].
    names: the class names, in the order of their numbers.
  """

  name: str
  images: Sequence[np.ndarray]
  classes: np.ndarray
  names: tuple[str, ...]

  @property
  def documents(self) -> int:
    """The number of images."""
    return len(self.classes)

  @property
  def targets(self) -> int:
    """The number of classes to predict in one epoch."""
    return self.documents


@dataclasses.dataclass(frozen=True, eq=False)
class CaptionedImages(Images):
  """Images with a text each.

  Attributes:
    text: the tokens of the texts, one for each image.
  """

  text: Tokens


def validate_size(size: int, channels: int) -> None:
  """Raises ValueError for a size below 1, or an unsupported number of channels."""
  if size < 1:
    raise ValueError(f'size={size} must be at least 1 pixel')
  if channels not in MODES:
    raise ValueError(f'channels={channels} must be 1 (gray) or 3 (red, green, blue)')


def load_square(file: pathlib.Path | bytes, size: int, channels: int, where: str) -> np.ndarray:
  """Returns the largest centered square of an image, scaled to size × size pixels.

  Args:
    file: a path, or the content of a file.
    where: the location, for the error.

  Raises:
    ValueError: if the image cannot be read.
  """
  with importing_extra('images'):
    from PIL import Image, ImageOps
  try:
    with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as opened:
      image = opened.convert(MODES[channels])
  except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
    raise ValueError(f'{where} cannot be read as an image: {error}') from error
  if image.size != (size, size):
    image = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
  return np.asarray(image).reshape(size, size, channels)


def encode_png(image: np.ndarray) -> io.BytesIO:
  """Returns an image as PNG."""
  with importing_extra('images'):
    from PIL import Image
  file = io.BytesIO()
  Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, 'png')
  file.seek(0)
  return file


def decode_png(data: bytes) -> np.ndarray:
  """Returns the image [H, W, C] of a PNG."""
  with importing_extra('images'):
    from PIL import Image
  with Image.open(io.BytesIO(data)) as image:
    return np.asarray(image).reshape(image.height, image.width, -1)
