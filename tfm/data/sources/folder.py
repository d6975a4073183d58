"""A user's own images, in a folder for each class."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator

from tfm.data import corpus
from tfm.data import images as arrays
from tfm.data.sources import protocol


SUFFIXES = '.png', '.jpg', '.jpeg'


@dataclasses.dataclass(frozen=True)
class Folder(protocol.Source):
  """PATH/CLASS/….png or .jpg; or PATH/train/CLASS/…, PATH/validation/CLASS/… and PATH/test/CLASS/…: of every
  image its middle, as large a square as it has, in size × size pixels. Of splits, what there is no folder for
  is carved out of train, by the hash of the image.

  Attributes:
    path: of the folder; `~` is the home folder.
    size: pixels a side; channels: 1 (gray) or 3.
  """

  fields = ('image', 'label')

  path: str
  size: int
  channels: int = 3

  def __post_init__(self):
    arrays.check(self.size, self.channels)

  @property
  def image_shape(self):
    return self.size, self.size, self.channels

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    root = pathlib.Path(os.path.expanduser(self.path))
    folders = sorted(path.name for path in root.glob('*/'))
    # Splits if that is all there is: a class may be called train, too.
    splits = (
      {'train': root} if set(folders) - set(corpus.SPLITS) else {split: root / split for split in folders}
    )
    if 'train' not in splits:
      raise ValueError(
        f'{root} has the folders {folders}; there must be one for each class, or one called train'
      )
    found = {
      split: sorted(path for path in folder.glob('*/**/*') if path.suffix.lower() in SUFFIXES)
      for split, folder in splits.items()
    }
    for split, paths in found.items():
      if not paths:
        raise ValueError(
          f'{splits[split]} holds no image; put .png or .jpg files into a folder for each class, CLASS/FILE.png'
        )
    fixed = corpus.kept(found)

    def read() -> Iterator[corpus.Document]:
      for split, paths in found.items():
        for path in paths:
          image = arrays.fitted(path, self.size, self.channels, str(path))
          yield split if split in fixed else None, image, path.relative_to(splits[split]).parts[0]

    return corpus.prepare(self.spec, read, cache_dir, fixed, self.fields)
