"""Labelled images, each with a sentence that names its class."""

import dataclasses
import functools
from collections.abc import Iterator

from tfm.data import documents
from tfm.data.corpus import RawDocuments
from tfm.data.sources import protocol
from tfm.errors import require


@dataclasses.dataclass(frozen=True)
class Captions(protocol.StoredSource):
  """The images of another source, with a text each: one of the templates around the name of the class, as
  in the prompts of Radford et al. 2021, §3.1.4.

  The content of the image decides which template it has, so its split and its text are the same whatever else
  the source has. The label is the name.

  Attributes:
    source: the spec of a source of images with a label: 'digits', "folder('photos', 224)".
    templates: texts with {} in place of the name.
    names: a name for each label of the source, in pairs: ('0', 'zero', '1', 'one', …); (): the labels.

  Raises:
    ValueError: for another kind of source, a template without {}, and names that are no pairs; and for a
      label without a name when the images are read.
  """

  fields = ('image', 'text', 'label')

  source: str = 'digits'
  templates: tuple[str, ...] = ('a photo of the {}',)
  names: tuple[str, ...] = ()

  def __post_init__(self):
    require(
      isinstance(self.images, protocol.StoredSource) and self.images.fields == ('image', 'label'),
      f"source={self.source!r} has no images with a label that are stored; use 'digits' or 'folder(…)'",
    )
    require(bool(self.templates), "templates=() has no text; use one such as 'a photo of the {}'")
    for template in self.templates:
      require(
        template.count('{}') == 1,
        f'templates has {template!r}, in which {{}} must stand once for the name of the class',
      )
    require(
      len(self.names) % 2 == 0,
      f'names has {len(self.names)} entries; give each label and its name, such as ("0", "zero")',
    )

  @functools.cached_property
  def images(self) -> protocol.Source:
    """The source of the images and their labels."""
    return protocol.build_source(self.source)

  @property
  def image_shape(self):
    return self.images.image_shape

  def raw_documents(self) -> RawDocuments:
    raw, name_of = self.images.raw_documents(), dict(zip(self.names[::2], self.names[1::2]))

    def read(reader) -> Iterator[documents.Document]:
      for split, image, label in reader():
        require(
          not name_of or label in name_of,
          f'{self.spec} has no name for the label {label!r}; add it to names, or leave names out',
        )
        name = name_of.get(label, label)
        template = self.templates[documents.digest(image)[0] % len(self.templates)]
        yield split, image, template.replace('{}', name), name

    readers = [functools.partial(read, reader) for reader in raw.readers]
    return RawDocuments(self.spec, readers, raw.fixed, self.fields)
