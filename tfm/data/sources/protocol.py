"""What a source of text, or of images, is."""

import abc
import dataclasses
import pathlib
from typing import ClassVar

from tfm.data import corpus


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
  """Where documents come from; the fields of a subclass are the literals of its spec.

  Attributes:
    fields: the texts of a document: a 'text', a 'source' and a 'target', or a 'text' and its 'label', or
      the 'labels' of its words, as many words divided by spaces, or the 'answers' in it, as spans
      `first:last` of its bytes; or an 'image' and its 'label'.
    image_shape: H, W, C of every image; () of texts.
    is_infinite: whether the documents of training have no end.
  """

  fields: ClassVar[tuple[str, ...]] = ('text',)
  image_shape: ClassVar[tuple[int, ...]] = ()

  @property
  def is_infinite(self) -> bool:
    return False

  @property
  def spec(self) -> str:
    """The source as a spec, which is its name in messages: "text('plays/*.txt')"."""
    fields = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
    given = [
      repr(value) if f.default is dataclasses.MISSING else f'{f.name}={value!r}'
      for f, value in fields
      if value != f.default
    ]
    return type(self).__module__.rpartition('.')[2] + (f'({", ".join(given)})' if given else '')

  @abc.abstractmethod
  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    """Reads the documents, hashes and splits them, and keeps them under `cache_dir`.

    Raises:
      ValueError: if the source cannot be found or read, is not UTF-8, is empty, or is too short
        for a train, a validation and a test split.
    """
