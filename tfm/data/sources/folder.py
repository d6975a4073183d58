"""The user's images, in a folder for each class."""

import dataclasses
import os
import pathlib
from collections.abc import Iterator

from tfm.data import images, splitting
from tfm.data.corpus import RawDocuments
from tfm.data.documents import SPLITS, Document
from tfm.data.sources import protocol
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Folder(protocol.StoredSource):
  """PATH/CLASS/….png or .jpg; or PATH/train/CLASS/…, PATH/validation/CLASS/… and PATH/test/CLASS/…

  The largest centered square of every image is scaled to size × size pixels. A split without a folder is
  carved out of train, by the hash of the image.

  Attributes:
    path: the folder; `~` is the home folder.
    size: pixels per side; channels: 1 (gray) or 3.
  """

  fields = ('image', 'label')
  folder_suffixes = '.png', '.jpg', '.jpeg'

  path: str
  size: Size
  channels: Size = 3

  def __post_init__(self):
    images.validate_size(self.size, self.channels)

  @property
  def image_shape(self):
    return self.size, self.size, self.channels

  def raw_documents(self) -> RawDocuments:
    root = pathlib.Path(os.path.expanduser(self.path))
    folders = sorted(path.name for path in root.glob('*/'))
    # These are splits only if all of them are: a class may be named train, too.
    splits = {'train': root} if set(folders) - set(SPLITS) else {split: root / split for split in folders}
    if 'train' not in splits:
      raise ValueError(f'{root} has the folders {folders}; it needs one for each class, or one named train')
    files = {
      split: sorted(path for path in folder.glob('*/**/*') if path.suffix.lower() in self.folder_suffixes)
      for split, folder in splits.items()
    }
    for split, paths in files.items():
      if not paths:
        raise ValueError(
          f'{splits[split]} has no images; put .png or .jpg files into a folder for each class, '
          'CLASS/FILE.png'
        )
    fixed = splitting.fixed_splits(files)

    def read() -> Iterator[Document]:
      for split, paths in files.items():
        for path in paths:
          image = images.load_square(path, self.size, self.channels, str(path))
          yield split if split in fixed else None, image, path.relative_to(splits[split]).parts[0]

    return RawDocuments(self.spec, [read], fixed, self.fields)
