"""A corpus: documents of text, or images, in three splits, known by the hash of their content.

A document is a text, or several that belong together, such as a sentence and its translation, or a text or an
image and what is to be told of it: its fields. A document's split is chosen by the hash of its first field:
it stays when files are renamed, reordered or added, and equal documents never stand on both sides. Where the
documents are too few for that (a single book), they are cut after blank lines into pieces, and the pieces, in
the order of their hashes, are dealt out by size; a warning says so.

The documents are kept as a TFDS data set in array_record, which is read without TensorFlow. Documents that
are drawn by their numbers are not kept, and may have no end.
"""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import io
import logging
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow_datasets as tfds

from tfm.data import cache, images, progress


SPLITS = ('train', 'validation', 'test')
SHARE = 0.05  # of the validation and of the test split, where the source has none
TOLERANCE = 5  # a split may be so many times its share, or so small a part of it, by chance
PIECES = 200  # into which a corpus of few documents is cut, …
PIECE_BYTES = 64, 65536  # … each of a size between these
INFINITE = sys.maxsize  # the number of documents that are drawn without end
SAMPLE = 500  # of those, the documents that tell by their hash what all are
READ = 256  # documents to read at once
VERSION = 1  # of the rules of this file; a part of every hash
LABELS = 'label', 'labels'  # fields that are to be told from the others: of a document, of each of its words
ANSWERS = (
  'answers'  # the field that says which bytes of the text are to be told, as `first:last` divided by spaces
)

IMAGE = 'image'  # the field that is no text

Field = str | np.ndarray  # a text, or an image, uint8 [H, W, C]
Document = tuple[
  str | None, *tuple[Field, ...]
]  # the split that the source itself gives, if any, and the fields
Placed = tuple[str, *tuple[Field, ...]]
Rule = Callable[[Iterable[Document]], Iterator[Placed]]  # gives every document its split

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Documents in splits.

  Attributes:
    name: the source's spec, for messages.
    hash: hexadecimal hash of the documents and their splits, whatever their order.
    splits: random-access texts by 'train', 'validation' and 'test', and in these by the field of the
      documents; all fields have one order.
    bytes: the size of each split that has an end, of its texts in UTF-8.
    classes: the labels that there are, in order, where the source itself knows; else those of training are
      all.
  """

  name: str
  hash: str
  splits: Mapping[str, Mapping[str, Sequence[Field]]]
  bytes: Mapping[str, int]
  classes: tuple[str, ...] = ()

  @property
  def documents(self) -> Mapping[str, int]:
    """The number of documents of each split."""
    return {split: len(next(iter(texts.values()))) for split, texts in self.splits.items()}

  @property
  def fields(self) -> tuple[str, ...]:
    """The names of what a document holds."""
    return tuple(self.splits['train'])

  @property
  def texts(self) -> tuple[str, ...]:
    """The fields that are read, and not told from others."""
    return tuple(field for field in self.fields if field not in (*LABELS, ANSWERS))

  @property
  def label(self) -> str | None:
    """The field that is told, if there is one."""
    return next((field for field in self.fields if field in LABELS), None)


def prepare(
  name: str,
  read: Callable[[], Iterable[Document]],
  cache_dir: pathlib.Path,
  fixed: Sequence[str] = (),
  fields: tuple[str, ...] = ('text',),
) -> Corpus:
  """Splits the documents that `read()` yields and keeps them under their content's hash.

  Args:
    name: the source's spec, for messages.
    read: yields (split, *fields) of every document; called several times. The split is one of `fixed`,
      or None for a document that a hash is to assign.
    cache_dir: where to keep the corpus.
    fixed: the splits that the source gives itself: all three, or some without train, out of which
      the others are carved.
    fields: the names of a document's fields.

  Raises:
    ValueError: if there is no text, or too little for the splits, or it changes while it is read.
  """
  carved = tuple(split for split in SPLITS if split not in fixed)
  rule = _by_hash(carved)
  survey = _survey(name, rule(read()))
  if not survey.bytes.total():
    raise ValueError(f'{name} is empty: {survey.documents.total()} documents without any text')
  if not _balanced(survey, carved):
    if len(fields) > 1:
      raise ValueError(
        f'{name} has too few documents to be split by their hashes: {survey.documents.total()}; '
        'give more, or splits of their own'
      )
    rule = _by_piece(name, read, carved, survey)
    survey = _survey(name, rule(read()))
  for split in SPLITS:
    if not survey.documents[split]:
      raise ValueError(f'{name} has no documents in its {split!r} split')
  directory = cache_dir / 'corpora' / survey.hash
  cache.once(directory, lambda part: _write(part, name, lambda: rule(read()), survey, fields))
  _tell(
    name,
    survey.hash,
    ', '.join(f'{split} {survey.documents[split]} documents {survey.bytes[split]} bytes' for split in SPLITS),
  )
  stored = tfds.builder_from_directory(directory / Documents.name / str(Documents.VERSION))
  raw = {field: tfds.decode.SkipDecoding() for field in fields if field == IMAGE}
  sources = {split: stored.as_data_source(split, decoders=raw or None) for split in SPLITS}
  splits = {split: {field: _Field(source, field) for field in fields} for split, source in sources.items()}
  return Corpus(name, survey.hash, splits, {split: survey.bytes[split] for split in SPLITS})


@functools.cache
def _tell(name: str, found: str, sizes: str) -> None:
  """Once is enough, however often it is opened."""
  _log.info('%s: content hash %s; %s', name, found, sizes)


@functools.cache
def _tell_few(name: str, documents: int, pieces: int, size: int) -> None:
  """As `_tell`."""
  _log.warning(
    '%s has too few documents to be split by their hashes: %d are cut into %d pieces of about %d '
    'bytes, each then a document',
    name,
    documents,
    pieces,
    size,
  )


def drawn(
  name: str,
  draw: Callable[[str, int], tuple[str, ...]],
  sizes: Mapping[str, int],
  fields: tuple[str, ...],
  classes: tuple[str, ...] = (),
) -> Corpus:
  """Documents that are made when they are read, by their split and number.

  Args:
    name: the source's spec: what is drawn depends on nothing else but the libraries that draw.
    draw: (split, number) → the fields of a document, always the same.
    sizes: how many documents each split has; INFINITE is as many as are read.
    classes: the labels that there are, in order, where documents or their words have one.

  Raises:
    ValueError: for labels without their names that have no end.
  """
  if INFINITE in sizes.values() and any(field in LABELS for field in fields) and not classes:
    raise ValueError(f'{name} has no end, and so it has to say which labels there are')
  survey, kept = (
    _Survey(),
    functools.lru_cache(maxsize=64)(draw),
  )  # a document's fields are read one after another
  for split, size in sizes.items():
    for number in progress.track(range(SAMPLE if size == INFINITE else size), f'drawing {name} {split}'):
      survey.add(split, *kept(split, number))
  splits = {
    split: {field: _Drawn(functools.partial(kept, split), place, size) for place, field in enumerate(fields)}
    for split, size in sizes.items()
  }
  found = hashlib.blake2b(f'{name} {survey.hash}'.encode(), digest_size=16).hexdigest()
  return Corpus(
    name, found, splits, {split: survey.bytes[split] for split in sizes if sizes[split] != INFINITE}, classes
  )


class Documents(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """A TFDS data set of the documents, each with its split."""

  name = 'documents'
  VERSION = tfds.core.Version('1.0.0')
  url_infos = {}  # it downloads nothing

  def __init__(self, documents: Callable[[], Iterator[Placed]], fields: tuple[str, ...], **kwargs):
    self._documents, self._fields = documents, fields
    self.written = _Survey()
    super().__init__(file_format='array_record', **kwargs)

  def _info(self):
    features = {
      field: tfds.features.Image(encoding_format='png') if field == IMAGE else tfds.features.Text()
      for field in self._fields
    }
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

  def _split_generators(self, dl_manager):
    return {split: self._generate_examples(split) for split in SPLITS}

  def _generate_examples(self, split):
    seen = collections.Counter()
    for given, *fields in self._documents():
      if given == split:
        self.written.add(split, *fields)
        digest = _digest(*fields).hex()
        seen[digest] += 1
        # TFDS orders the documents by their keys: by content, not by file.
        stored = (x if isinstance(x, str) else images.encoded(x) for x in fields)
        yield f'{digest}-{seen[digest]}', dict(zip(self._fields, stored, strict=True))


def by_split(spec: str, pattern: str, names: Sequence[str]) -> dict[str, str]:
  """The path of each split, of which `{split}` in a pattern stands for the name; without it, of train alone.

  Args:
    spec: the source's, for the error.
    names: what the files call the training, the validation and the test split, at least the first.

  Raises:
    ValueError: for other names than that.
  """
  if not 1 <= len(names) <= len(SPLITS) or not all(isinstance(name, str) for name in names):
    raise ValueError(
      f'{spec}: splits={names!r} must name the training split, and after it the '
      'validation and the test split or not'
    )
  found = dict(zip(SPLITS, names)) if '{split}' in pattern else {'train': ''}
  return {split: pattern.replace('{split}', name) for split, name in found.items()}


def kept(given: Iterable[str]) -> list[str]:
  """Of the splits that a source gives, in order, those that stay whole: of train, others are carved if they
  lack.
  """
  found = [split for split in SPLITS if split in given]
  return found if len(found) == len(SPLITS) else [split for split in found if split != 'train']


def examples(source) -> Iterator[Mapping]:
  """All examples of a TFDS data source, many read at a time: one by one is far slower."""
  for start in range(0, len(source), READ):
    yield from source.__getitems__(range(start, min(start + READ, len(source))))


class _Field(Sequence):
  """What stands in one of the fields of a TFDS data source."""

  def __init__(self, source, field: str):
    self._source, self._field = source, field
    self._read = images.decoded if field == IMAGE else bytes.decode

  def __len__(self):
    return len(self._source)

  def __getitem__(self, index: int) -> Field:
    if not -len(self) <= index < len(self):
      raise IndexError(index)
    return self._read(self._source[index % len(self)][self._field])

  def __iter__(self) -> Iterator[Field]:
    return (self._read(example[self._field]) for example in examples(self._source))


class _Drawn(Sequence):
  """What is drawn for one of the fields."""

  def __init__(self, draw: Callable[[int], tuple[str, ...]], place: int, size: int):
    self._draw, self._place, self._size = draw, place, size

  def __len__(self):
    return self._size

  def __getitem__(self, index: int) -> str:
    if not 0 <= index < self._size:
      raise IndexError(index)
    return self._draw(index)[self._place]


class _Survey:
  """Counts, sizes and the hash of documents in splits, whatever their order."""

  def __init__(self):
    self.documents, self.bytes, self._sum = collections.Counter(), collections.Counter(), 0

  def add(self, split: str, *fields: Field):
    data = _joined(fields)
    self.documents[split] += 1
    self.bytes[split] += len(data)
    digest = hashlib.blake2b(data, digest_size=32, person=split.encode()).digest()
    self._sum = (self._sum + int.from_bytes(digest, 'big')) % 2**256  # a sum has no order

  @property
  def hash(self) -> str:
    state = VERSION, sorted(self.documents.items()), sorted(self.bytes.items()), self._sum
    return hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest()


def cut(text: str, size: int) -> Iterator[str]:
  """Cuts a text after the blank line, or else the line, that follows `size` characters.

  No piece is longer than twice the size: a longer line is cut anywhere. The pieces joined are the
  text, and an empty text is one empty piece.
  """
  piece, length = [], 0
  for match in re.finditer(r'[^\n]*\n|[^\n]+', text):
    line = match[0]
    for start in range(0, len(line), 2 * size):
      part = line[start : start + 2 * size]
      if length + len(part) > 2 * size:
        yield ''.join(piece)
        piece, length = [], 0
      piece.append(part)
      length += len(part)
      if length >= size and not part.strip():
        yield ''.join(piece)
        piece, length = [], 0
  if piece or not text:
    yield ''.join(piece)


def _by_hash(carved: Sequence[str]) -> Rule:
  def assign(first: Field) -> str:
    fraction = int.from_bytes(_digest(first)[:8], 'big') / 2**64
    for split in carved[1:]:
      if fraction < SHARE:
        return split
      fraction -= SHARE
    return 'train'

  return lambda documents: ((split or assign(first), first, *rest) for split, first, *rest in documents)


def _by_piece(name, read, carved, survey: _Survey) -> Rule:
  """Cuts the documents to be assigned; deals the pieces out by size in the order of hashes."""
  free = sum(survey.bytes[split] for split in carved)
  size = min(max(free // PIECES, PIECE_BYTES[0]), PIECE_BYTES[1])
  sizes = collections.Counter()
  for split, text in read():
    if split is None:
      for piece in cut(text, size):
        sizes[_digest(piece)] += len(piece.encode())
  if len(sizes) < len(carved):
    raise ValueError(
      f'{name} is too short to be split: {free} bytes in {len(sizes)} different pieces of about '
      f'{size}; give at least {PIECES * PIECE_BYTES[0]} bytes of text'
    )
  _tell_few(name, sum(survey.documents[s] for s in carved), len(sizes), size)
  where, order, count, dealt = {}, [*carved[1:], 'train'], 0, 0
  for index, digest in enumerate(sorted(sizes)):
    full = dealt >= SHARE * free or len(sizes) - index < len(order)
    if count and full and len(order) > 1:
      order.pop(0)
      count, dealt = 0, 0
    where[digest] = order[0]
    count, dealt = count + 1, dealt + sizes[digest]

  def rule(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
    for split, text in documents:
      if split is None:
        for piece in cut(text, size):
          if (digest := _digest(piece)) not in where:
            raise _changed(name)
          yield where[digest], piece
      else:
        yield split, text

  return rule


def _balanced(survey: _Survey, carved: Sequence[str]) -> bool:
  total = sum(survey.bytes[split] for split in carved) or 1
  shares = {split: SHARE for split in carved[1:]} | {'train': 1 - SHARE * len(carved[1:])}
  return all(
    shares[split] / TOLERANCE <= survey.bytes[split] / total <= shares[split] * TOLERANCE for split in carved
  )


def _survey(name: str, documents: Iterable[Placed]) -> _Survey:
  survey = _Survey()
  for split, *fields in progress.track(documents, f'reading {name}'):
    survey.add(split, *fields)
  return survey


def _write(directory: pathlib.Path, name: str, documents: Callable, survey: _Survey, fields: tuple[str, ...]):
  def tracked():
    return progress.track(documents(), f'writing {name}', survey.documents.total())

  builder = Documents(tracked, fields, data_dir=str(directory))
  active = tfds.core.utils.tqdm_utils._active
  tfds.disable_progress_bar()
  try:
    with contextlib.redirect_stdout(io.StringIO()):  # TFDS prints of downloads, of which is none
      builder.download_and_prepare()
  finally:
    tfds.core.utils.tqdm_utils.display_progress_bar(active)
  if builder.written.hash != survey.hash:
    raise _changed(name)


def _changed(name: str) -> ValueError:
  return ValueError(f'{name} changed while it was read; run again when its files are complete')


def _digest(*fields: Field) -> bytes:
  return hashlib.blake2b(_joined(fields), digest_size=16).digest()


def _joined(fields: Sequence[Field]) -> bytes:
  return b'\0'.join(
    x.encode() if isinstance(x, str) else repr(x.shape).encode() + x.tobytes() for x in fields
  )
