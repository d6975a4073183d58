"""The source slot: where texts or images come from."""

import abc
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import ClassVar

from tfm import spec
from tfm.data import sources
from tfm.data.corpus import Corpus, RawDocuments, prepare_corpus
from tfm.data.source_paths import require_source


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
  """Where documents come from; the fields of a subclass are the literals of its spec.

  Attributes:
    fields: the fields of a document: a 'text'; a 'source' and a 'target'; a 'prompt' with its 'chosen' and
      its 'rejected' continuation; a 'text' with its 'label', with
      the 'labels' of its words, separated by spaces, or with its 'answers', as ranges `first:last` of its
      bytes; an 'image' and its 'label'; or an 'image' with its 'text' and its 'label'.
    image_shape: H, W, C of every image; () for texts.
    suffixes: of the files that its path or pattern may name, literally, because they are read without
      importing the class; a path alone, which is no spec, is refused with the specs of the sources that read
      it.
    folder_suffixes: likewise, of the files in a folder that its path may name.
    is_infinite: whether there are infinitely many training documents.
    parts: the sources that it mixes, by name.
  """

  fields: ClassVar[tuple[str, ...]] = ('text',)
  image_shape: ClassVar[tuple[int, ...]] = ()
  suffixes: ClassVar[tuple[str, ...]] = ()
  folder_suffixes: ClassVar[tuple[str, ...]] = ()

  @property
  def is_infinite(self) -> bool:
    return False

  @property
  def parts(self) -> Mapping[str, 'Source']:
    return {}

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
  def open_corpus(self, store: Callable[[RawDocuments], Corpus]) -> Corpus:
    """Returns the documents in splits.

    Args:
      store: splits, hashes and stores documents that are read.

    Raises:
      ValueError: if the source cannot be found or read, is not UTF-8, is empty, or is too short
        for a train, a validation and a test split.
    """

  def prepare(self, cache_dir: pathlib.Path) -> Corpus:
    """Returns the documents in splits, stored under `cache_dir`; raises as `open_corpus`."""
    return self.open_corpus(functools.partial(prepare_corpus, cache_dir=cache_dir))


class StoredSource(Source):
  """A source whose documents are read from somewhere, and stored in splits."""

  @abc.abstractmethod
  def raw_documents(self) -> RawDocuments:
    """Returns what reads the documents.

    Raises:
      ValueError: if the source cannot be found.
    """

  def open_corpus(self, store):
    return store(self.raw_documents())


def build_source(text: str, named: Mapping[str, Source] | None = None) -> Source:
  """Builds the source of a spec.

  Args:
    named: name → source of config.data.sources, for the specs that combine them.

  Raises:
    SpecError: as `tfm.spec.build`; for the path of files, the message has the specs that read them.
  """
  require_source(text)
  return spec.build(text, sources, Source, sources=named or {})
