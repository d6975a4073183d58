"""The source slot: where texts or images come from."""

import abc
import dataclasses
import pathlib
from typing import ClassVar

from tfm.data.corpus import Corpus


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
  """Where documents come from; the fields of a subclass are the literals of its spec.

  Attributes:
    fields: the fields of a document: a 'text'; a 'source' and a 'target'; a 'text' with its 'label', with
      the 'labels' of its words, separated by spaces, or with its 'answers', as ranges `first:last` of its
      bytes; or an 'image' and its 'label'.
    image_shape: H, W, C of every image; () for texts.
    is_infinite: whether there are infinitely many training documents.
  """

  fields: ClassVar[tuple[str, ...]] = ('text',)
  image_shape: ClassVar[tuple[int, ...]] = ()

  @property
  def is_infinite(self) -> bool:
    return False

  @property
  def spec(self) -> str:
    """The source as a spec string, its name in messages: "text('plays/*.txt')"."""
    fields = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
    literals = [
      repr(value) if f.default is dataclasses.MISSING else f'{f.name}={value!r}'
      for f, value in fields
      if value != f.default
    ]
    return type(self).__module__.rpartition('.')[2] + (f'({", ".join(literals)})' if literals else '')

  @abc.abstractmethod
  def prepare(self, cache_dir: pathlib.Path) -> Corpus:
    """Reads the documents, hashes and splits them, and stores them under `cache_dir`.

    Raises:
      ValueError: if the source cannot be found or read, is not UTF-8, is empty, or is too short
        for a train, a validation and a test split.
    """
