"""A corpus: documents of text, or images, in splits, identified by the hash of their content.

Documents that are read from files are stored on disk (`document_store`) in splits (`splitting`). Documents
that are generated from their index are not stored, and there may be infinitely many of them.
"""

import dataclasses
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tfm.data import cache, progress_bar, splitting
from tfm.data.documents import ANSWERS, IMAGE, INFINITE, LABELS, SPLITS, Document, Field, Survey
from tfm.data.tokenizers.protocol import PreparedTokenizer


HASH_SAMPLE = 500  # the number of documents of an infinite split that are hashed
TOKENIZER_SAMPLE = 20_000  # the number of documents of an infinite split that a tokenizer is trained on


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Documents in splits.

  Attributes:
    name: the source's spec, for messages.
    hash: hexadecimal hash of the documents and their splits, independent of their order.
    splits: random access to the field values, by 'train', 'validation' and 'test', and by the name of the
      field; all fields have the same order.
    bytes: the size of each finite split, of its texts in UTF-8.
    classes: the class names, in order, if the source defines them; otherwise the labels of the training
      split are all.
    tokenizers: by the name of a field, the tokenizer with which it is already encoded.
  """

  name: str
  hash: str
  splits: Mapping[str, Mapping[str, Sequence[Field]]]
  bytes: Mapping[str, int]
  classes: tuple[str, ...] = ()
  tokenizers: Mapping[str, PreparedTokenizer] = dataclasses.field(default_factory=dict)

  def __str__(self):
    """A description for the log."""
    sizes = '; '.join(
      f'{split} {count:,} documents, {self.bytes[split]:,} bytes'
      if split in self.bytes
      else f'{split} infinite'
      for split, count in self.documents.items()
    )
    return f'{self.name}, content hash {self.hash}: {sizes}'

  @property
  def documents(self) -> Mapping[str, int]:
    """The number of documents of each split."""
    return {split: len(next(iter(columns.values()))) for split, columns in self.splits.items()}

  @property
  def fields(self) -> tuple[str, ...]:
    """The names of a document's fields."""
    return tuple(self.splits['train'])

  @property
  def input_fields(self) -> tuple[str, ...]:
    """The fields that are texts, and neither labels nor answers."""
    return tuple(field for field in self.fields if field not in (*LABELS, ANSWERS, IMAGE))

  @property
  def label_field(self) -> str | None:
    """The field with the labels, if there is one."""
    return next((field for field in self.fields if field in LABELS), None)

  def training_texts(self, fields: tuple[str, ...]) -> Iterator[str]:
    """Yields the texts of some fields of the training split, one field after another; of an infinite split,
    those of its first documents.
    """
    limit = TOKENIZER_SAMPLE if self.documents['train'] == INFINITE else None
    for field in fields:
      yield from itertools.islice(self.splits['train'][field], limit)


@dataclasses.dataclass(frozen=True)
class RawDocuments:
  """The documents of a source as they are read, before they are split and stored.

  Attributes:
    name: the source's spec, for messages.
    readers: each yields (split, *fields) of the documents of a part of the source, such as a file, whenever
      it is called. The split is one of `fixed`, or None for a document that is assigned by its hash.
    fixed: the splits that the source defines itself: with train, these are all; without it, the others are
      carved out of train.
    fields: the names of a document's fields.
    count: how many documents there are, if that is known before they are read, for the time left.
  """

  name: str
  readers: Sequence[Callable[[], Iterable[Document]]]
  fixed: Sequence[str] = ()
  fields: tuple[str, ...] = ('text',)
  count: int | None = None

  @property
  def carved(self) -> tuple[str, ...]:
    """The splits to which documents are assigned by their hashes."""
    return () if 'train' in self.fixed else tuple(split for split in SPLITS if split not in self.fixed)

  @property
  def splits(self) -> tuple[str, ...]:
    """All splits, in order."""
    return tuple(split for split in SPLITS if split in (*self.fixed, *self.carved))

  def read(self) -> Iterator[Document]:
    """Yields all documents."""
    return itertools.chain.from_iterable(reader() for reader in self.readers)

  def assign_splits(
    self, survey_documents: Callable[[splitting.Rule], Survey]
  ) -> tuple[splitting.Rule, Survey]:
    """Returns the rule by which documents get their splits, and the survey of the documents under it.

    Args:
      survey_documents: computes the survey of all documents under a rule.

    Raises:
      ValueError: if there is no text, or too little for the splits, or it changes while it is read.
    """
    rule = splitting.split_by_hash(self.carved)
    survey = survey_documents(rule)
    if not survey.bytes.total():
      raise ValueError(f'{self.name} is empty: it has no text at all')
    for parts in [[split] for split in self.fixed] + [self.carved]:
      if any(survey.documents[split] for split in parts) and not any(survey.bytes[split] for split in parts):
        raise ValueError(
          f'{self.name} has no text in its {parts[0]!r} split, whose files are empty; give it text, or leave '
          'the split out'
        )
    if not splitting.is_balanced(survey, self.carved):
      if len(self.fields) > 1:
        raise ValueError(
          f'{self.name} has too few documents to be split by their hashes: {survey.documents.total()}; '
          'give more documents, or files for each split'
        )
      rule = splitting.split_by_piece(self.name, self.read, self.carved, survey)
      survey = survey_documents(rule)
    for split in self.splits:
      if not survey.documents[split]:
        raise ValueError(f'{self.name} has no documents in its {split!r} split')
    return rule, survey


def prepare_corpus(documents: RawDocuments, cache_dir: pathlib.Path) -> Corpus:
  """Splits documents and stores them under the hash of their content.

  Raises:
    ValueError: if there is no text, or too little for the splits, or it changes while it is read.
  """
  from tfm.data import document_store  # imports TFDS, which generated documents do not need

  name, fields = documents.name, documents.fields

  def survey_documents(rule):
    survey = Survey()
    for split, *values in progress_bar.track(rule(documents.read()), f'reading {name}', documents.count):
      survey.add(split, *values)
    return survey

  rule, survey = documents.assign_splits(survey_documents)
  directory = cache_dir / 'corpora' / survey.hash
  cache.create_once(
    directory,
    lambda part: document_store.write_documents(part, name, lambda: rule(documents.read()), survey, fields),
  )
  splits = document_store.read_documents(directory, fields)
  return Corpus(name, survey.hash, splits, {split: survey.bytes[split] for split in documents.splits})


def generate_corpus(
  name: str,
  generate: Callable[[str, int], tuple[str, ...]],
  sizes: Mapping[str, int],
  fields: tuple[str, ...],
  classes: tuple[str, ...] = (),
) -> Corpus:
  """Returns a corpus whose documents are generated, from their split and index, when they are read.

  Args:
    name: the source's spec; the documents depend on nothing else but the libraries that generate them.
    generate: (split, index) → the fields of a document, always the same.
    sizes: the number of documents of each split; INFINITE for no limit.
    classes: the class names, in order, if documents or their words have labels.

  Raises:
    ValueError: for an infinite split with labels but without class names.
  """
  if INFINITE in sizes.values() and any(field in LABELS for field in fields) and not classes:
    raise ValueError(f'{name} is infinite, so its labels cannot be collected; give its class names')
  # The fields of a document are read one after another.
  survey, generate = Survey(), functools.lru_cache(maxsize=64)(generate)
  for split, size in sizes.items():
    indices = range(HASH_SAMPLE if size == INFINITE else size)
    for index in progress_bar.track(indices, f'generating {name} {split}'):
      survey.add(split, *generate(split, index))
  splits = {
    split: {
      field: _GeneratedColumn(functools.partial(generate, split), place, size)
      for place, field in enumerate(fields)
    }
    for split, size in sizes.items()
  }
  digest = hashlib.blake2b(f'{name} {survey.hash}'.encode(), digest_size=16).hexdigest()
  finite_bytes = {split: survey.bytes[split] for split in sizes if sizes[split] != INFINITE}
  return Corpus(name, digest, splits, finite_bytes, classes)


class _GeneratedColumn(Sequence):
  """Random access to one field of generated documents."""

  def __init__(self, generate: Callable[[int], tuple[str, ...]], place: int, size: int):
    self._generate, self._place, self._size = generate, place, size

  def __len__(self):
    return self._size

  def __getitem__(self, index: int) -> str:
    if not 0 <= index < self._size:
      raise IndexError(index)
    return self._generate(index)[self._place]
