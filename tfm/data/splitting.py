"""How documents are assigned to the train, validation and test splits.

The hash of a document's first field decides its split: it does not change when files are renamed, reordered
or added, and equal documents are never in two splits. Where there are too few documents for that (a single
book), they are divided into pieces after blank lines, and the pieces are distributed by size in the order of
their hashes.
"""

import collections
import functools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from tfm.data.documents import SPLITS, Document, Field, SplitDocument, Survey, changed_error, digest


VALIDATION_SHARE = 0.05  # of the bytes, for each of validation and test, where the source has no such split
TOLERANCE = 5  # the factor by which a split may differ from its share by chance
PIECES = 200  # the number of pieces into which a corpus of few documents is divided, …
PIECE_BYTES = 64, 65536  # … and the bounds of their size

Rule = Callable[[Iterable[Document]], Iterator[SplitDocument]]  # assigns a split to every document

_log = logging.getLogger(__name__)


def fixed_splits(available: Iterable[str]) -> list[str]:
  """Returns which of a source's splits are used as they are, in order.

  If validation or test is missing, it is carved out of train, so train is not among them.
  """
  splits = [split for split in SPLITS if split in available]
  return splits if len(splits) == len(SPLITS) else [split for split in splits if split != 'train']


def split_by_hash(carved: Sequence[str]) -> Rule:
  """Returns the rule that assigns documents without a split to one of `carved` by the hash of their first
  field.
  """

  def assign(first: Field) -> str:
    fraction = int.from_bytes(digest(first)[:8], 'big') / 2**64
    for split in carved[1:]:
      if fraction < VALIDATION_SHARE:
        return split
      fraction -= VALIDATION_SHARE
    return 'train'

  return lambda documents: ((split or assign(first), first, *rest) for split, first, *rest in documents)


def split_by_piece(
  name: str, read: Callable[[], Iterable[Document]], carved: Sequence[str], survey: Survey
) -> Rule:
  """Returns the rule that divides texts without a split into pieces, and assigns these by size in hash order.

  Raises:
    ValueError: if there are fewer pieces than splits.
  """
  total = sum(survey.bytes[split] for split in carved)
  piece_size = min(max(total // PIECES, PIECE_BYTES[0]), PIECE_BYTES[1])
  sizes = collections.Counter()
  for split, text in read():
    if split is None:
      for piece in split_text(text, piece_size):
        sizes[digest(piece)] += len(piece.encode())
  if len(sizes) < len(carved):
    raise ValueError(
      f'{name} is too short to be split: {total} bytes in {len(sizes)} different pieces of about '
      f'{piece_size}; give at least {PIECES * PIECE_BYTES[0]} bytes of text'
    )
  documents = sum(survey.documents[split] for split in carved)
  _warn_few_documents(name, ' and '.join(carved), documents, len(sizes), piece_size)
  split_of, order, count, used = {}, [*carved[1:], 'train'], 0, 0
  for index, piece_digest in enumerate(sorted(sizes)):
    is_full = used >= VALIDATION_SHARE * total or len(sizes) - index < len(order)
    if count and is_full and len(order) > 1:
      order.pop(0)
      count, used = 0, 0
    split_of[piece_digest] = order[0]
    count, used = count + 1, used + sizes[piece_digest]

  def rule(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
    for split, text in documents:
      if split is None:
        for piece in split_text(text, piece_size):
          if (piece_digest := digest(piece)) not in split_of:
            raise changed_error(name)
          yield split_of[piece_digest], piece
      else:
        yield split, text

  return rule


def split_tail(read: Callable[[], Iterable[Document]], tail: float) -> Callable[[], Iterator[SplitDocument]]:
  """Returns `read` with splits: the last fraction `tail` of all characters is for validation, the rest for
  training. A text across the border is divided there.
  """
  start = int((1 - tail) * sum(len(text) for _, text in read()))  # of validation

  def read_splits() -> Iterator[SplitDocument]:
    left = start
    for _, text in read():
      if left:
        yield 'train', text[:left]
      if not left or len(text) > left:
        yield 'validation', text[left:]
      left = max(0, left - len(text))

  return read_splits


def is_balanced(survey: Survey, carved: Sequence[str]) -> bool:
  """Whether each of the carved splits has about its share of the bytes."""
  total = sum(survey.bytes[split] for split in carved) or 1
  shares = {split: VALIDATION_SHARE for split in carved[1:]}
  shares['train'] = 1 - VALIDATION_SHARE * len(carved[1:])
  return all(
    shares[split] / TOLERANCE <= survey.bytes[split] / total <= shares[split] * TOLERANCE for split in carved
  )


def split_text(text: str, size: int) -> Iterator[str]:
  """Divides a text after the first blank line, otherwise the first line end, that follows `size` characters.

  No piece is longer than twice the size: a longer line is divided anywhere. The pieces joined are the text;
  an empty text is one empty piece.
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


@functools.cache
def _warn_few_documents(name: str, splits: str, documents: int, pieces: int, size: int) -> None:
  """Warns once, however often the corpus is opened."""
  _log.warning(
    '%s has too few documents to be split into %s: %d in all, divided into %d pieces of about %d bytes, '
    'each of which becomes a document',
    name,
    splits,
    documents,
    pieces,
    size,
  )
