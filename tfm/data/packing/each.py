"""One document a row, with what is to be told of it."""

import dataclasses
import logging

import numpy as np

from tfm.data import images as image_arrays
from tfm.data import tokens as token_arrays
from tfm.data.packing import protocol


FLIP, CROP = 1, 2  # what bits are for; 0 is the order

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Each(protocol.Packing):
  """end of text, text (Devlin et al. 2019, §3: the end of a text stands where BERT has [CLS]), or where a
  published tokenizer has a token of its own there, that, text, end of text; or an image.

  A text that is longer than a row is cut, and a warning tells of such. `classes` is the class of the text [],
  or of each of its words [T], at its first token, with -1 where there is none to tell.

  Of an image `image` [H, W, C] is between -1 and 1, float32, and a row has the positions of its tokens, which
  a model makes.

  Every epoch has an order of its own; texts may have no end. In training images may be varied, in another way
  every time one comes:

  Attributes:
    flip: whether half of them are mirrored, left for right.
    crop: pixels by which they are shifted at most, up or down and left or right, black coming in: what He
      et al. 2016, §4.2, do by padding each side and cutting out at random.

  Raises:
    ValueError: for a crop below 0, or (from `pack`) for texts that would have to be flipped or cropped.
  """

  layout = 'contiguous'
  document_kinds = ('text', 'label'), ('text', 'labels'), ('image', 'label')
  extra_fields = frozenset({'classes'})
  supports_infinite = True

  flip: bool = False
  crop: int = 0

  def __post_init__(self):
    if self.crop < 0:
      raise ValueError(f'crop={self.crop} must be 0 or more pixels')

  def check(self, tokens, length):
    protocol.check_length(length)  # a row is filled up with padding, so nothing is too short

  def pack(self, tokens, length, seed):
    if isinstance(tokens, image_arrays.Images):
      return _ImageRows(tokens, length, seed, self.flip, self.crop)
    if self.flip or self.crop:
      raise ValueError(
        f'flip={self.flip} and crop={self.crop} are for images, and {tokens.name} is text; leave them out'
      )
    return _TextRows(tokens, length, seed)


class _Rows(protocol.OneEach):
  def padding(self, like):
    return super().padding(like) | dict(classes=np.full_like(like['classes'], -1))


class _TextRows(_Rows):
  def __init__(self, labelled: token_arrays.LabelledTexts, length: int, seed: int | None):
    super().__init__(labelled, length, seed)
    if labelled.documents == protocol.INFINITE:
      return
    longer = labelled.text.lengths + len(labelled.text.frame) > length
    if longer.any():
      _log.warning(
        '%s: %d of %d texts are longer than %d tokens, the longest of %d, and are cut',
        labelled.name,
        longer.sum(),
        len(longer),
        length - 1,
        labelled.text.lengths.max(),
      )

  def _row(self, number, index):
    text, told = self._documents.text, self._documents.told(number)
    first, *last = text.frame
    tokens = np.array([first, *text.document(number)[:-1], *last], np.int32)
    size = min(len(tokens), self.length) - 1
    if len(tokens) > self.length and text.documents == protocol.INFINITE:
      _log.warning(
        '%s[%d] is of %d tokens, and longer than the %d of a row: it is cut',
        self._documents.name,
        number,
        len(tokens) - 1,
        self.length - 1,
      )
    row = protocol.padding(self.length, ('inputs', 'positions', 'segments'))
    row['inputs'][: size + 1] = tokens[: size + 1]
    row['positions'][: size + 1], row['segments'][: size + 1] = np.arange(size + 1), 1
    if not self._documents.words:
      return row | dict(classes=np.int32(told))
    row['classes'] = np.full(self.length, -1, np.int32)
    row['classes'][1 : size + 1][: len(told)] = told[:size]
    return row


class _ImageRows(_Rows):
  def __init__(self, images: image_arrays.Images, length: int, seed: int | None, flip: bool, crop: int):
    super().__init__(images, length, seed)
    self._flip, self._crop = flip, crop

  def _row(self, number, index):
    image = self._documents.images[number]
    if self._seed is not None:
      image = self._varied(image, index)
    row = dict(image=image.astype(np.float32) / 127.5 - 1)  # as the code of Dosovitskiy et al. 2021 has it
    row['positions'], row['segments'] = np.arange(self.length, dtype=np.int32), np.ones(self.length, np.int32)
    return row | dict(classes=np.int32(self._documents.classes[number]))

  def _varied(self, image: np.ndarray, index: int) -> np.ndarray:
    if self._flip and protocol.bits(self._seed, index, 1, FLIP)[0] % 2:
      image = image[:, ::-1]
    if not self._crop:
      return image
    (height, width, _), sides = image.shape, (self._crop, self._crop)
    top, left = (protocol.bits(self._seed, index, 2, CROP) % np.uint64(2 * self._crop + 1)).astype(int)
    return np.pad(image, (sides, sides, (0, 0)))[top : top + height, left : left + width]
