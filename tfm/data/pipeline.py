"""From a source to batches: documents are prepared once, then Grain reads batches by their index.

Batch k of a stream has rows k B … k B + B - 1, and each process reads those rows of every batch that its
devices hold (`row_share`). So the sequence of batches does not depend on the number of processes, and the
state of an iterator, the same in all of them, is the index of its next batch.
"""

import abc
import dataclasses
import hashlib
import json
import logging
import pathlib
from collections.abc import Iterable, Mapping
from typing import ClassVar

import grain
import numpy as np
from absl import flags

from tfm.data import cache, class_labels, progress_bar
from tfm.data import tokens as token_arrays
from tfm.data.corpus import Corpus
from tfm.data.documents import ANSWERS, IMAGE
from tfm.data.mixture import MixedCorpus, MixedDocuments
from tfm.data.packing import protocol as packing
from tfm.data.row_share import RowShare
from tfm.data.sources.protocol import Source
from tfm.data.tokenizers import protocol as tokenizers
from tfm.errors import require, suggest


PREFETCHED_BATCHES = 4

_log = logging.getLogger(__name__)

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Data(abc.ABC):
  """A corpus with what turns its documents into arrays."""

  corpus: Corpus

  def tokens(self, split: str) -> packing.Documents | MixedDocuments:
    """Returns the documents of 'train', 'validation' or 'test', prepared on first use; of a mixture, those of
    every source, or of one: 'test/web'.

    Raises:
      ValueError: if there is no such split or source.
    """
    data, split = self.select(split)
    corpus = data.corpus
    if not isinstance(corpus, MixedCorpus):
      return data._tokens(split)
    parts = {name: data.tokens(f'{split}/{name}') for name in corpus.parts}
    return MixedDocuments(f'{corpus.name} {split}', corpus.weights, parts)

  def select(self, split: str) -> tuple['Data', str]:
    """Returns the data of the source that 'test/web' names and its split, 'test'; without a source, all data.

    Raises:
      ValueError: if there is no such source.
    """
    split, slash, name = split.partition('/')
    if not slash:
      return self, split
    parts = self.corpus.parts if isinstance(self.corpus, MixedCorpus) else {}
    require(name in parts, f'{split}/{name}: {self.corpus.name} mixes no {name!r}; {suggest(name, parts)}')
    return dataclasses.replace(self, corpus=parts[name]), split

  @abc.abstractmethod
  def _tokens(self, split: str) -> packing.Documents:
    """Returns the documents of a split of a single source."""


@dataclasses.dataclass(frozen=True)
class TextData(Data):
  """A corpus of text with trained tokenizers.

  Attributes:
    source_tokenizer: the tokenizer of the source of pairs, if it has its own vocabulary; otherwise None.
  """

  tokenizer: tokenizers.Tokenizer
  source_tokenizer: tokenizers.Tokenizer | None
  cache_dir: pathlib.Path

  def __str__(self):
    """A description for the log."""
    source = self.source_tokenizer
    return (
      f'text: {self.corpus}\n'
      f'tokens: {self.tokenizer.identity}, vocabulary {self.tokenizer.vocab_size}'
      + (f'; of the source: {source.identity}, vocabulary {source.vocab_size}' if source else '')
    )

  def _tokens(self, split):
    """Encodes texts, or pairs, with their images, labels or answers if the documents have them."""

    def tokenize_field(field):
      tokenizer = self.source_tokenizer if field == 'source' and self.source_tokenizer else self.tokenizer
      return token_arrays.tokenize(self.corpus, split, field, tokenizer, self.cache_dir)

    name = f'{self.corpus.name} {split}'
    tokens = {field: tokenize_field(field) for field in self.corpus.input_fields}
    if IMAGE in self.corpus.fields:
      return class_labels.load_captioned_images(self.corpus, split, tokens['text'], self.cache_dir)
    if self.corpus.label_field:
      return class_labels.load_labelled_texts(
        self.corpus, split, tokens['text'], self.tokenizer, self.cache_dir
      )
    if ANSWERS in self.corpus.fields:
      if not self.tokenizer.is_lossless:
        raise ValueError(
          f'{self.tokenizer.identity} normalizes texts, so the answers of {self.corpus.name} cannot be '
          "located in its tokens; use 'bytes' or 'words'"
        )
      answers = self.corpus.splits[split][ANSWERS]
      return token_arrays.AnsweredTexts(name, tokens['text'], answers, self.tokenizer.token_bytes)
    if 'text' in tokens:
      return tokens['text']
    kind = token_arrays.Preferences if 'prompt' in tokens else token_arrays.Pairs
    return kind(name, **tokens)


@dataclasses.dataclass(frozen=True)
class ImageData(Data):
  """A corpus of images, which needs no tokenizer."""

  tokenizer: ClassVar[None] = None
  source_tokenizer: ClassVar[None] = None

  cache_dir: pathlib.Path

  def __str__(self):
    """A description for the log."""
    shape = ' × '.join(map(str, self.corpus.splits['train'][IMAGE][0].shape))
    return f'images: {shape}, {self.corpus}'

  def _tokens(self, split):
    return class_labels.load_images(self.corpus, split, self.cache_dir)


def open_data(
  source: Source,
  tokenizer: tokenizers.Tokenizer | None,
  cache_dir: pathlib.Path | None = None,
  source_tokenizer: tokenizers.Tokenizer | None = None,
) -> TextData | ImageData:
  """Prepares a source of texts, or, without a tokenizer, of images.

  Raises:
    ValueError: as `open_text`.
  """
  cache_dir = cache.directory() if cache_dir is None else pathlib.Path(cache_dir)
  if tokenizer is None:
    return ImageData(source.prepare(cache_dir), cache_dir)
  return open_text(source, tokenizer, cache_dir, source_tokenizer)


def open_text(
  source: Source,
  tokenizer: tokenizers.Tokenizer,
  cache_dir: pathlib.Path | None = None,
  source_tokenizer: tokenizers.Tokenizer | None = None,
) -> TextData:
  """Prepares a source, and trains the tokenizers on its training split unless they are trained.

  A tokenizer is trained on all text fields; with a source tokenizer, each is trained on its own field.

  Raises:
    ValueError: for a source that cannot be found, read, decoded or split, and for a tokenizer that does not
      fit the text; the message names it.
  """
  cache_dir = cache.directory() if cache_dir is None else pathlib.Path(cache_dir)
  return train_tokenizers(source.prepare(cache_dir), tokenizer, cache_dir, source_tokenizer)


def train_tokenizers(
  corpus: Corpus,
  tokenizer: tokenizers.Tokenizer,
  cache_dir: pathlib.Path,
  source_tokenizer: tokenizers.Tokenizer | None = None,
) -> TextData:
  """Returns a corpus with its tokenizers; trains and raises as `open_text`."""
  if not source_tokenizer:
    trained = train_tokenizer(tokenizer, corpus, corpus.input_fields, cache_dir)
    return TextData(corpus, trained, None, cache_dir)
  source_tokenizer = train_tokenizer(source_tokenizer, corpus, ('source',), cache_dir)
  trained = train_tokenizer(tokenizer, corpus, ('target',), cache_dir)
  return TextData(corpus, trained, source_tokenizer, cache_dir)


def train_tokenizer(
  tokenizer: tokenizers.Tokenizer, corpus: Corpus, fields: tuple[str, ...], cache_dir: pathlib.Path
) -> tokenizers.Tokenizer:
  """Returns the tokenizer trained on some fields of the training split, or of the first documents of an
  infinite one.

  The result is stored, so that a tokenizer is trained once. For prepared tokens it is the one that encoded
  them.
  """
  prepared = [corpus.tokenizers[field] for field in fields if field in corpus.tokenizers]
  for one in prepared:
    one.require_same(tokenizer, corpus.name)
    tokenizer = one.tokenizer
  if tokenizer.is_trained:
    return tokenizer
  if not tokenizer.needs_training:
    return tokenizer.train(())  # not stored: the files that it reads may change

  def write(directory: pathlib.Path):
    _log.info('training the tokenizer %s on %s', tokenizer, corpus.name)
    documents = progress_bar.track(corpus.training_texts(fields), f'training on {corpus.name}')
    try:
      trained = tokenizer.train(documents)
    except ValueError as error:
      raise ValueError(f'{tokenizer} does not fit {corpus.name}: {error}') from error
    (directory / 'state.json').write_text(json.dumps(trained.state()), encoding='utf-8')

  name = '-'.join((corpus.hash, *fields, tokenizer.identity))
  directory = cache.create_once(cache_dir / 'tokenizers' / name, write)
  return tokenizers.load(json.loads((directory / 'state.json').read_text(encoding='utf-8')))


@dataclasses.dataclass(frozen=True)
class Batches:
  """One process's rows of every batch, by the batch's index; a Grain data source.

  Batches are filled up with rows of padding.
  """

  rows: packing.Rows
  share: RowShare

  def __len__(self) -> int:
    return self.rows.count_batches(self.share.batch_size)

  def __getitem__(self, index: int) -> Batch:
    numbers = self.rows.batch_rows(index, self.share.batch_size)
    own_numbers = [numbers[i] for i in self.share.scale(len(numbers)).rows]
    own = {i: self.rows[i] for i in own_numbers if i is not None}
    # All processes use padding of the same shape, that of the batch.
    example = next(iter(own.values()), None) or self.rows[numbers[0]]
    padding = self.rows.padding_like(example)
    rows = [own.get(i, padding) for i in own_numbers]
    return {field: np.stack([row[field] for row in rows]) for field in padding}

  def __repr__(self) -> str:  # Grain includes it in its messages
    return f'Batches({len(self)} of {self.share.batch_size})'


def train_iterator(
  rows: packing.Rows, batch_size: int, share: RowShare | None = None, threads: int = 1
) -> grain.DatasetIterator:
  """Iterates over this process's part of the batches, infinitely for training rows.

  Args:
    rows: from `Packing.rows`.
    batch_size: the global B, over all processes.
    share: which rows of a batch to read; None: all.
    threads: the number of prefetching threads. Rows are memory mapped, so worker processes would be slower.

  Returns:
    An iterator over dicts of int32 [rows, T]. `get_state()` returns a small JSON object, the
    same in every process, with which `set_state` resumes on any number of processes; `close()` stops its
    threads.
  """
  return _iterate(_batches(rows, batch_size, share), threads)


def evaluation_batches(
  rows: packing.Rows, batch_size: int, share: RowShare | None = None, threads: int = 1, limit: int = 0
) -> grain.DatasetIterator:
  """As `train_iterator`, in one pass over the rows from `Packing.evaluation_rows`.

  The last batch is filled with rows of padding, so every token counts once.

  Args:
    limit: if not 0, the maximum number of batches, evenly spread over the split: its beginning may be one
      long document and so not representative.
  """
  batches = _batches(rows, batch_size, share)
  if limit and limit < len(batches):
    batches = batches[:: len(batches) // limit][:limit]
  return _iterate(batches, threads)


def _batches(rows, batch_size, share) -> grain.MapDataset:
  if not flags.FLAGS.is_parsed():  # Grain reads absl's flags in every program
    flags.FLAGS.mark_as_parsed()
  return grain.MapDataset.source(Batches(rows, share or RowShare.all(batch_size)))


def _iterate(batches: grain.MapDataset, threads: int) -> grain.DatasetIterator:
  options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=PREFETCHED_BATCHES)
  return iter(batches.to_iter_dataset(options))


def batch_hash(batch: Mapping[str, np.ndarray], share: RowShare | None = None) -> str:
  """Returns the hash of a batch, or of one process's rows of it, as 16 hexadecimal digits.

  It is the sum over rows, modulo 2**64, of the hash of the row and its index in the global batch. So the
  hashes of the rows that each process counts add up (`add_hashes`) to the hash of the batch.

  Args:
    batch: arrays [rows, …] by name.
    share: which rows of the global batch these are; None: all.
  """
  names = sorted(batch)
  share = (share or RowShare.all(len(batch[names[0]]))).of_host(batch)
  total = 0
  for i in np.flatnonzero(share.counted):
    digest = hashlib.blake2b(repr((int(share.rows[i]), names)).encode(), digest_size=8)
    for name in names:
      digest.update(np.ascontiguousarray(batch[name][i]))
    total += int.from_bytes(digest.digest(), 'big')
  return f'{total % 2**64:016x}'


def add_hashes(hashes: Iterable[str]) -> str:
  """Returns the hash of the batch whose parts have these hashes."""
  return f'{sum(int(h, 16) for h in hashes) % 2**64:016x}'
