"""One document per row, with its labels."""

import dataclasses
import logging

import numpy as np

from tfm.data import images as image_arrays
from tfm.data import tokens as token_arrays
from tfm.data.documents import INFINITE
from tfm.data.packing import protocol
from tfm.errors import require
from tfm.shapes import Int
from tfm.spec import SizeOrZero


FLIP, CROP = 1, 2  # the purposes of random bits beside protocol.ORDER

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Each(protocol.Packing):
  """Packs one text with its labels, or one image with its class, into a row.

  The inputs are: end of text, text (Devlin et al. 2019, §3: the end of a text takes the place of BERT's
  [CLS]); or, if a published tokenizer has a different first token: that token, text, end of text. A text that
  is longer than a row is truncated, and a warning counts these. `classes` is the class of the text [], or of
  each of its words [T], at its first token, with -1 at other tokens.

  Of an image, `image` [H, W, C] is between -1 and 1, float32, and latents are as they are; the row has the
  positions and segments of the patch tokens, which the model computes. If the image has a text, these are of
  the text, and the inputs are: beginning of text, text, end of text; of a longer text the last of its tokens
  are left out.

  Every epoch has its own random order; texts may be infinitely many. Training can augment images, each time
  differently:

  Attributes:
    flip: whether half of the images are mirrored, left to right.
    crop: the maximum shift in pixels, up or down and left or right, with black borders: equivalent to
      padding each side and cropping at random (He et al. 2016, §4.2).

  Raises:
    ValueError: for a crop below 0, or (from `pack`) for augmentation of texts.
  """

  layout = 'contiguous'
  document_kinds = ('text', 'label'), ('text', 'labels'), ('image', 'label'), ('image', 'text', 'label')
  extra_fields = frozenset({'classes'})
  supports_infinite = True

  flip: bool = False
  crop: SizeOrZero = 0

  def __post_init__(self):
    if self.crop < 0:
      raise ValueError(f'crop={self.crop} must be 0 or more pixels')

  def validate(self, tokens, length):
    protocol.validate_length(length)  # rows are filled up with padding, so no split is too short

  def pack(self, tokens, length, seed):
    if isinstance(tokens, image_arrays.CaptionedImages):
      return _CaptionedRows(tokens, length, seed, self.flip, self.crop)
    if isinstance(tokens, image_arrays.Images):
      return _ImageRows(tokens, length, seed, self.flip, self.crop)
    if self.flip or self.crop:
      raise ValueError(
        f'flip={self.flip} and crop={self.crop} are for images, and {tokens.name} is text; leave them out'
      )
    return _TextRows(tokens, length, seed)


class _Rows(protocol.DocumentRows):
  def padding_like(self, example):
    return super().padding_like(example) | dict(classes=np.full_like(example['classes'], -1))


def _warn_of_truncation(name: str, lengths: Int[np.ndarray, 'N'], most: int) -> None:
  """Logs how many texts are longer than the `most` tokens that a row has for them."""
  if (too_long := lengths > most).any():
    _log.warning(
      '%s: %d of %d texts are longer than %d tokens and are truncated; the longest has %d',
      name,
      too_long.sum(),
      len(too_long),
      most,
      lengths.max(),
    )


class _TextRows(_Rows):
  def __init__(self, texts: token_arrays.LabelledTexts, length: int, seed: int | None):
    super().__init__(texts, length, seed)
    if texts.documents != INFINITE:
      _warn_of_truncation(texts.name, texts.text.lengths, length - len(texts.text.boundary_ids))

  def _row(self, number, index):
    text, labels = self._documents.text, self._documents.labels(number)
    first, *last = text.boundary_ids
    tokens = np.array([first, *text.document(number)[:-1], *last], np.int32)
    size = min(len(tokens), self.length) - 1
    if len(tokens) > self.length and text.documents == INFINITE:
      _log.warning(
        '%s[%d] has %d tokens, more than the %d of a row, and is truncated',
        self._documents.name,
        number,
        len(tokens) - 1,
        self.length - 1,
      )
    row = protocol.padding_row(self.length, ('inputs', 'positions', 'segments'))
    row['inputs'][: size + 1] = tokens[: size + 1]
    row['positions'][: size + 1], row['segments'][: size + 1] = np.arange(size + 1), 1
    if not self._documents.has_word_labels:
      return row | dict(classes=np.int32(labels))
    row['classes'] = np.full(self.length, -1, np.int32)
    row['classes'][1 : size + 1][: len(labels)] = labels[:size]
    return row


class _ImageRows(_Rows):
  def __init__(self, images: image_arrays.Images, length: int, seed: int | None, flip: bool, crop: int):
    super().__init__(images, length, seed)
    self._flip, self._crop = flip, crop

  def _row(self, number, index):
    image = self._documents.images[number]
    if self._seed is not None:
      image = self._augment(image, index)
    is_pixels = image.dtype == np.uint8
    image = image.astype(np.float32)
    # Pixels as in the code of Dosovitskiy et al. 2021; other numbers, such as latents, as they are.
    row = dict(image=image / 127.5 - 1 if is_pixels else image)
    row['positions'], row['segments'] = np.arange(self.length, dtype=np.int32), np.ones(self.length, np.int32)
    return row | dict(classes=np.int32(self._documents.classes[number]))

  def _augment(self, image: np.ndarray, index: int) -> np.ndarray:
    if self._flip and protocol.random_bits(self._seed, index, 1, FLIP)[0] % 2:
      image = image[:, ::-1]
    if not self._crop:
      return image
    (height, width, _), border = image.shape, (self._crop, self._crop)
    offsets = protocol.random_bits(self._seed, index, 2, CROP) % np.uint64(2 * self._crop + 1)
    top, left = offsets.astype(int)
    return np.pad(image, (border, border, (0, 0)))[top : top + height, left : left + width]


class _CaptionedRows(_ImageRows):
  def __init__(self, images: image_arrays.CaptionedImages, length: int, *augmentation):
    require(
      length >= 2,
      f'length={length} is less than the 2 tokens that begin and end a text; use a greater length',
    )
    super().__init__(images, length, *augmentation)
    _warn_of_truncation(images.name, images.text.lengths, length - 2)

  def _row(self, number, index):
    text = self._documents.text
    return super()._row(number, index) | protocol.text_row(text.bos_id, text.document(number), self.length)
