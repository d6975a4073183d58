"""From a source to batches: prepare the documents once, then read batches by their index with Grain.

Batch k of a stream holds its rows k B … k B + B - 1, and process p of n reads rows p B / n to
(p + 1) B / n of every batch. So the sequence of batches does not depend on the number of processes,
and the state of an iterator, the same in all of them, is the index of its next batch.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import pathlib
from collections.abc import Iterable, Mapping
from typing import ClassVar

import grain
import numpy as np
from absl import flags

from tfm.data import cache, classes, images, progress
from tfm.data import corpus as corpora
from tfm.data import tokens as token_arrays
from tfm.data.packing import protocol as packing
from tfm.data.sources.protocol import Source
from tfm.data.tokenizers import protocol as tokenizers


BEGINNING = 20_000  # documents of a split without end, to train a tokenizer on

_log = logging.getLogger(__name__)

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TextData:
  """A corpus with the tokenizers trained on it.

  Attributes:
    source_tokenizer: of the source of a pair, where it has a vocabulary of its own; else None.
  """

  corpus: corpora.Corpus
  tokenizer: tokenizers.Tokenizer
  source_tokenizer: tokenizers.Tokenizer | None
  cache_dir: pathlib.Path

  def __str__(self):
    """What it is, for the log."""
    own = self.source_tokenizer
    return (
      f'text: {_content(self.corpus)}\n'
      f'tokens: {self.tokenizer.identity}, vocabulary {self.tokenizer.vocab_size}'
      + (f'; of the source: {own.identity}, vocabulary {own.vocab_size}' if own else '')
    )

  def tokens(
    self, split: str
  ) -> token_arrays.Tokens | token_arrays.Pairs | token_arrays.LabelledTexts | token_arrays.AnsweredTexts:
    """The tokens of 'train', 'validation' or 'test', encoded on first use: pairs, labelled or answered, where
    documents are.
    """

    def field(name):
      tokenizer = self.source_tokenizer if name == 'source' and self.source_tokenizer else self.tokenizer
      return token_arrays.tokenize(self.corpus, split, name, tokenizer, self.cache_dir)

    found = {name: field(name) for name in self.corpus.texts}
    if self.corpus.label:
      return classes.labelled(self.corpus, split, found['text'], self.tokenizer, self.cache_dir)
    if corpora.ANSWERS in self.corpus.fields:
      if not self.tokenizer.is_lossless:
        raise ValueError(
          f'{self.tokenizer.identity} changes texts before it cuts them up, so nothing tells where the answers of '
          f"{self.corpus.name} stand; 'bytes' or 'words' would do"
        )
      answers = self.corpus.splits[split][corpora.ANSWERS]
      return token_arrays.AnsweredTexts(
        f'{self.corpus.name} {split}', found['text'], answers, self.tokenizer.token_bytes
      )
    return found['text'] if 'text' in found else token_arrays.Pairs(f'{self.corpus.name} {split}', **found)


@dataclasses.dataclass(frozen=True)
class ImageData:
  """A corpus of images, for which no tokenizer is asked."""

  tokenizer: ClassVar[None] = None
  source_tokenizer: ClassVar[None] = None

  corpus: corpora.Corpus
  cache_dir: pathlib.Path

  def __str__(self):
    """What it is, for the log."""
    shape = ' × '.join(map(str, self.corpus.splits['train'][corpora.IMAGE][0].shape))
    return f'images: {shape}, {_content(self.corpus)}'

  def tokens(self, split: str) -> images.Images:
    """The images of 'train', 'validation' or 'test'."""
    return classes.images(self.corpus, split, self.cache_dir)


def _content(corpus: corpora.Corpus) -> str:
  sizes = ', '.join(
    f'{split} {corpus.bytes[split]:,} bytes' if split in corpus.bytes else f'{split} without end'
    for split in corpus.splits
  )
  return f'{corpus.name}, content hash {corpus.hash}: {sizes}'


def open_data(
  source: Source,
  tokenizer: tokenizers.Tokenizer | None,
  cache_dir: pathlib.Path | None = None,
  source_tokenizer: tokenizers.Tokenizer | None = None,
) -> TextData | ImageData:
  """Prepares a source of texts or of images; without a tokenizer, of images.

  Raises:
    ValueError: for what `open_text` refuses.
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

  A tokenizer is trained on all fields but those that have one of their own.

  Raises:
    ValueError: by name, for a source that cannot be found, read, decoded or split, and for a
      tokenizer that does not fit the text.
  """
  cache_dir = cache.directory() if cache_dir is None else pathlib.Path(cache_dir)
  corpus = source.prepare(cache_dir)
  if not source_tokenizer:
    return TextData(corpus, fit(tokenizer, corpus, corpus.texts, cache_dir), None, cache_dir)
  own = fit(source_tokenizer, corpus, ('source',), cache_dir)
  return TextData(corpus, fit(tokenizer, corpus, ('target',), cache_dir), own, cache_dir)


def fit(
  tokenizer: tokenizers.Tokenizer, corpus: corpora.Corpus, fields: tuple[str, ...], cache_dir: pathlib.Path
) -> tokenizers.Tokenizer:
  """The tokenizer trained on some fields of the corpus's training split, or of one without end on its
  beginning; kept, so that it is trained once.
  """
  if tokenizer.is_trained:
    return tokenizer
  if not tokenizer.needs_training:
    return tokenizer.train(())  # not kept: what it reads may have become another

  def write(directory: pathlib.Path):
    texts, count = [corpus.splits['train'][field] for field in fields], corpus.documents['train']
    if count == corpora.INFINITE:
      texts, count = [itertools.islice(text, BEGINNING) for text in texts], BEGINNING
    _log.info('training the tokenizer %s on %s', tokenizer, corpus.name)
    trained = tokenizer.train(
      progress.track(itertools.chain(*texts), f'training on {corpus.name}', count * len(texts))
    )
    (directory / 'state.json').write_text(json.dumps(trained.state()))

  name = '-'.join((corpus.hash, *fields, tokenizer.identity))
  try:
    directory = cache.once(cache_dir / 'tokenizers' / name, write)
  except ValueError as error:
    raise ValueError(f'{tokenizer} does not fit {corpus.name}: {error}') from error
  return tokenizers.load(json.loads((directory / 'state.json').read_text()))


@dataclasses.dataclass(frozen=True)
class Batches:
  """The rows of one process in every batch, by the batch's index; a Grain data source.

  Where there is no row, a batch is filled with padding.
  """

  rows: packing.Rows
  batch_size: int
  process_index: int
  process_count: int

  def __post_init__(self):
    if self.batch_size < 1 or self.batch_size % self.process_count:
      raise ValueError(
        f'batch_size={self.batch_size} does not divide among process_count='
        f'{self.process_count}; give a positive multiple of it'
      )
    if not 0 <= self.process_index < self.process_count:
      raise ValueError(
        f'process_index={self.process_index} is not below process_count='
        f'{self.process_count}; number the processes from 0'
      )

  def __len__(self) -> int:
    return self.rows.batches(self.batch_size)

  def __getitem__(self, index: int) -> Batch:
    numbers = self.rows.batch(index, self.batch_size)
    size = len(numbers) // self.process_count
    first = self.process_index * size
    there = {i: self.rows[i] for i in numbers[first : first + size] if i is not None}
    # All processes fill with padding alike, of the shape that the batch has.
    like = next(iter(there.values()), None) or self.rows[numbers[0]]
    padding = self.rows.padding(like)
    rows = [there.get(i, padding) for i in numbers[first : first + size]]
    return {field: np.stack([row[field] for row in rows]) for field in padding}

  def __repr__(self) -> str:  # Grain puts it into its messages
    return f'Batches({len(self)} of {self.batch_size})'


def train_iterator(
  rows: packing.Rows,
  batch_size: int,
  process_index: int = 0,
  process_count: int = 1,
  threads: int = 1,
  buffer: int = 4,
) -> grain.DatasetIterator:
  """Iterates over this process's part of the batches, without end for the rows of training.

  Args:
    rows: of `Packing.rows`.
    batch_size: the global B, over all processes.
    process_index, process_count: which rows of a batch to read.
    threads: that read ahead. Rows are memory mapped, so worker processes would cost more than
      they bring.
    buffer: batches to read ahead.

  Returns:
    An iterator over dicts of int32 [B / process_count, T]. `get_state()` is a small JSON object,
    the same in every process, with which `set_state` continues on any number of processes;
    `close()` ends its threads.

  Raises:
    ValueError: if the batch size is no multiple of the number of processes.
  """
  return _iterate(_batches(rows, batch_size, process_index, process_count), threads, buffer)


def evaluation_batches(
  rows: packing.Rows,
  batch_size: int,
  process_index: int = 0,
  process_count: int = 1,
  threads: int = 1,
  buffer: int = 4,
  limit: int = 0,
) -> grain.DatasetIterator:
  """As `train_iterator`, once over the rows of `Packing.evaluation_rows`.

  The last batch is filled with rows of padding: every token counts once.

  Args:
    limit: where not 0, at most so many batches, evenly spread over the split: its beginning may be
      one long document and is no sample.
  """
  batches = _batches(rows, batch_size, process_index, process_count)
  if limit and limit < len(batches):
    batches = batches[:: len(batches) // limit][:limit]
  return _iterate(batches, threads, buffer)


def _batches(rows, batch_size, process_index, process_count) -> grain.MapDataset:
  if not flags.FLAGS.is_parsed():  # Grain reads absl's flags, in whatever program it runs
    flags.FLAGS.mark_as_parsed()
  return grain.MapDataset.source(Batches(rows, batch_size, process_index, process_count))


def _iterate(batches: grain.MapDataset, threads: int, buffer: int) -> grain.DatasetIterator:
  return iter(batches.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)))


def batch_hash(batch: Mapping[str, np.ndarray], first_row: int = 0) -> str:
  """16 hexadecimal digits for the content of a batch, or of one process's rows of it.

  The sum over rows, modulo 2**64, of the hash of the row with its number in the global batch. So
  the hashes of the processes' rows add up (`add_hashes`) to that of the batch.

  Args:
    batch: arrays [rows, …] by name.
    first_row: the number of the first row in the global batch.
  """
  names = sorted(batch)
  total = 0
  for index in range(len(batch[names[0]])):
    digest = hashlib.blake2b(repr((first_row + index, names)).encode(), digest_size=8)
    for name in names:
      digest.update(np.ascontiguousarray(batch[name][index]))
    total += int.from_bytes(digest.digest(), 'big')
  return f'{total % 2**64:016x}'


def add_hashes(hashes: Iterable[str]) -> str:
  """The hash of the batch whose parts have these hashes."""
  return f'{sum(int(h, 16) for h in hashes) % 2**64:016x}'
