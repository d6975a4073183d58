"""Tokenizes documents once, into a folder or a bucket from which many processes read (`prepared_tokens`).

The documents of a split are in the order in which `document_store` keeps them, so training on prepared tokens
is the same run as training on the text. It is the order of a hash of each document, and a shard holds those
in one of equal parts of the range of hashes; whoever writes a shard needs no other.

An engine stores and sorts the documents, and calls the function that writes a shard for each of them: in this
process, or in many (`beam_engine`). The files are the same, byte for byte.
"""

import abc
import bisect
import collections
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfm.data import pipeline, progress_bar
from tfm.data import tokens as token_arrays
from tfm.data.corpus import Corpus, RawDocuments, prepare_corpus
from tfm.data.document_store import FieldColumn, document_key, order_hash
from tfm.data.documents import digest
from tfm.data.mixture import MixedCorpus
from tfm.data.prepared_tokens import DESCRIPTION, describe
from tfm.data.sources.protocol import Source, StoredSource
from tfm.data.token_shards import LENGTH_DTYPE, Storage, shard_name
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import require


KINDS = ('text',), ('source', 'target')  # the fields of documents that can be prepared
SHARD_BYTES = 2**27  # of text; a worker holds a shard in memory

# Yields the fields of each document of a shard.
Reader = Callable[[], Iterable[tuple[str, ...]]]


class Engine(abc.ABC):
  """Where documents are stored and shards are written.

  Attributes:
    shard_bytes: the most bytes of text of a shard, on average.
  """

  shard_bytes: int

  @abc.abstractmethod
  def store(self, documents: RawDocuments) -> Corpus:
    """Returns a corpus of the documents; each text is read in order."""

  @abc.abstractmethod
  def read_shards(self, corpus: Corpus, split: str) -> Sequence[Reader]:
    """Returns what reads each shard of a split."""

  @abc.abstractmethod
  def map(self, function: Callable[[Any], dict], items: Sequence[Any]) -> list[dict]:
    """Returns the results of the function, JSON objects, for all items."""

  def close(self) -> None:
    """Deletes what only the engine needs."""

  def count_shards(self, size: int) -> int:
    """Returns the number of shards of so many bytes of text."""
    return max(1, -(-size // self.shard_bytes))


@dataclasses.dataclass(frozen=True)
class InProcess(Engine):
  """Does everything in this process, one shard after another; documents are stored in the cache."""

  cache_dir: pathlib.Path
  shard_bytes: int = SHARD_BYTES

  def store(self, documents):
    return prepare_corpus(documents, self.cache_dir)

  def read_shards(self, corpus, split):
    columns = [corpus.splits[split][field] for field in corpus.fields]
    copies = collections.Counter(digest(*values) for values in zip(*columns))
    keys = (document_key(content, i + 1) for content, count in copies.items() for i in range(count))
    # The documents are stored in the order of these hashes.
    hashes, count = sorted(order_hash(split, key) for key in keys), self.count_shards(corpus.bytes[split])
    ends = [bisect.bisect_left(hashes, i + 1, key=lambda value: shard_of(value, count)) for i in range(count)]
    return [functools.partial(_read_rows, columns, *bounds) for bounds in zip([0, *ends], ends)]

  def map(self, function, items):
    return [function(item) for item in progress_bar.track(items, 'tokenizing', len(items))]


def _read_rows(columns: Sequence[FieldColumn], first: int, stop: int) -> Iterator[tuple[str, ...]]:
  return zip(*(column.iterate(first, stop) for column in columns))


def shard_of(order: int, count: int) -> int:
  """Returns the shard of the document with an `order_hash`."""
  return order * count >> 128


@dataclasses.dataclass(frozen=True)
class Shard:
  """Some documents of a split.

  Attributes:
    part: the name of the source in a mixture, or ''.
    split, index: of which split it is, and its number there; count: how many the split has.
    read: yields the documents.
  """

  part: str
  split: str
  index: int
  count: int
  read: Reader


@dataclasses.dataclass(frozen=True)
class ShardWriter:
  """Encodes the documents of a shard, and writes its files.

  Attributes:
    folder: where to write.
    name: of the source, for messages.
    tokenizers: of each field, in the order of the fields.
  """

  folder: Storage
  name: str
  tokenizers: Mapping[str, Tokenizer]

  def write(self, shard: Shard) -> dict[str, Any]:
    """Writes a shard; returns what it holds."""
    name = f'{self.name} {shard.split}'
    dtypes = {field: token_arrays.id_dtype(tokenizer) for field, tokenizer in self.tokenizers.items()}
    ids, sizes = {field: [] for field in dtypes}, dict.fromkeys(dtypes, 0)
    for values in shard.read():
      for (field, tokenizer), text in zip(self.tokenizers.items(), values, strict=True):
        ids[field].append(token_arrays.encode_field(text, tokenizer, name, field).astype(dtypes[field]))
        sizes[field] += len(text.encode())
    digests, fields = {}, {}
    for field, dtype in dtypes.items():
      lengths = np.array([len(one) for one in ids[field]], LENGTH_DTYPE)
      tokens = np.concatenate([np.zeros(0, dtype), *ids[field]])
      for kind, array in dict(ids=tokens, lengths=lengths).items():
        name = shard_name(shard.split, field, kind, shard.index, shard.count)
        digests[name] = self.folder.write(name, array.tobytes())
      fields[field] = dict(tokens=len(tokens), bytes=sizes[field])
    return dict(part=shard.part, split=shard.split, index=shard.index, fields=fields, digests=digests)


def validate_preparation(source: Source, url: str) -> None:
  """Raises ValueError for documents that cannot be prepared, and for a folder that is not empty."""
  for name, part in (source.parts or {'': source}).items():
    require(
      isinstance(part, StoredSource) and part.fields in KINDS,
      f'{part.spec} cannot be prepared; tfm prepare takes texts, and pairs, that are read from files',
    )
    folder = folder_of(url, name)
    require(not folder.sizes(), f'--to={folder.url} is not empty; delete it, or name another folder')


def folder_of(url: str, name: str) -> Storage:
  """Returns the folder of a source, or of the source of a mixture that has a name."""
  return Storage(f'{url}/{name}' if name else url)


def prepare_tokens(
  data: pipeline.TextData, specs: Mapping[str, str], url: str, engine: Engine
) -> dict[str, Mapping[str, Any]]:
  """Tokenizes a corpus of an engine into the folder `url`, or each corpus of a mixture into a folder in it.

  Args:
    specs: of the tokenizer of each field, as the config has them.

  Returns:
    The description of each folder, by the name of the source; '' for a single one.

  Raises:
    ValueError: if a tokenizer loses a part of the text.
  """
  corpus = data.corpus
  corpora = corpus.parts if isinstance(corpus, MixedCorpus) else {'': corpus}
  own = dict(source=data.source_tokenizer) if data.source_tokenizer else {}
  tokenizers = {field: own.get(field, data.tokenizer) for field in corpus.fields}
  shards = []
  for part, corpus in corpora.items():
    for split in corpus.splits:
      readers = engine.read_shards(corpus, split)
      shards += [Shard(part, split, index, len(readers), read) for index, read in enumerate(readers)]
  writers = {
    part: ShardWriter(folder_of(url, part), corpus.name, tokenizers) for part, corpus in corpora.items()
  }
  written = engine.map(functools.partial(_write_shard, writers), shards)
  written.sort(key=lambda shard: (shard['split'], shard['index']))
  descriptions = {}
  for part, corpus in corpora.items():
    of_part = [shard for shard in written if shard['part'] == part]
    description = describe(corpus, tokenizers, specs, of_part)
    text = json.dumps(description, ensure_ascii=False, indent=1)
    folder_of(url, part).write(DESCRIPTION, text.encode())
    descriptions[part] = description
  return descriptions


def _write_shard(writers: Mapping[str, ShardWriter], shard: Shard) -> dict[str, Any]:
  return writers[shard.part].write(shard)
