"""Arrays of numbers in place of images, such as the latents of an autoencoder, with their classes."""

import dataclasses
import hashlib
import os
import pathlib

import numpy as np

from tfm.data.corpus import Corpus
from tfm.data.documents import IMAGE, SPLITS
from tfm.data.sources import protocol
from tfm.errors import parsing, require
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Latents(protocol.Source):
  """PATH/train.npy, floats [N, size, size, channels], and PATH/train_classes.npy, integers [N] from 0;
  likewise validation and, if there is one, test.

  A model reads the numbers as they are: scale them to about unit variance. They are mapped into memory, not
  read at once; only their hash reads all.

  Attributes:
    path: the folder; `~` is the home folder.
    size: height and width of an array; channels: of it.

  Raises:
    ValueError: from `prepare`, for a missing file, or arrays of other shapes or types.
  """

  fields = ('image', 'label')

  path: str
  size: Size
  channels: Size = 4

  @property
  def image_shape(self):
    return self.size, self.size, self.channels

  def open_corpus(self, store):
    folder = pathlib.Path(os.path.expanduser(self.path))
    names = [split for split in SPLITS if split != 'test' or (folder / 'test.npy').is_file()]
    splits, sizes, digest, count = {}, {}, hashlib.blake2b(digest_size=16), 0
    for split in names:
      images, classes = (self._load(folder / f'{split}{end}.npy') for end in ('', '_classes'))
      require(
        images.shape[1:] == self.image_shape and images.dtype.kind == 'f',
        f'{folder / split}.npy has shape {images.shape} and type {images.dtype}, and {self.spec} needs '
        f'floats of shape [N, {", ".join(map(str, self.image_shape))}]',
      )
      require(
        classes.shape == images.shape[:1] and classes.dtype.kind in 'iu' and classes.min(initial=0) >= 0,
        f'{folder / split}_classes.npy has shape {classes.shape} and type {classes.dtype}, and needs an '
        f'integer from 0 for each of the {len(images)} arrays of {split}.npy',
      )
      require(len(images) > 0, f'{folder / split}.npy is empty')
      for path in (folder / f'{split}.npy', folder / f'{split}_classes.npy'):
        with path.open('rb') as file:
          digest.update(hashlib.file_digest(file, 'sha256').digest())
      splits[split], sizes[split] = {IMAGE: images, 'label': [*map(str, classes)]}, images.nbytes
      count = max(count, 1 + int(classes.max()))
    return Corpus(self.spec, digest.hexdigest(), splits, sizes, tuple(map(str, range(count))))

  def _load(self, path: pathlib.Path) -> np.ndarray:
    require(path.is_file(), f'{self.spec} has no {path.name}; write it with numpy.save')
    with parsing(path, 'an array of numpy.save'):
      return np.load(path, mmap_mode='r')
