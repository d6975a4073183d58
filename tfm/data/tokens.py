"""A split as one flat array of tokens on disk, with where each document begins."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from tfm.data import cache, progress
from tfm.data import corpus as corpora
from tfm.data.tokenizers import protocol


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
  """The tokens of a split's documents, without special tokens.

  Attributes:
    name: source and split, for messages.
    ids: unsigned integers [N], memory mapped.
    offsets: int64 [documents + 1]; document d is `ids[offsets[d]:offsets[d + 1]]`.
    eos_id: the token that ends every document.
    bytes: the UTF-8 size of the text, for bits per byte.
    begin: the token that begins a text which is read as a whole; None: that which ends it.
    before: tokens that stand before every document.
  """

  name: str
  ids: np.ndarray
  offsets: np.ndarray
  eos_id: int
  bytes: int
  begin: int | None = None
  before: tuple[int, ...] = ()

  @property
  def documents(self) -> int:
    return len(self.offsets) - 1

  @property
  def lengths(self) -> np.ndarray:
    """The number of tokens of each document, int64 [documents]."""
    return np.diff(self.offsets)

  @property
  def sizes(self) -> np.ndarray:
    """Tokens of each document with its end, int64 [documents, 1]."""
    return self.lengths[:, None] + len(self.before) + 1

  @property
  def targets(self) -> int:
    """The number of tokens to predict in one epoch: all, and the end of every document."""
    return len(self.ids) + self.documents

  def document(self, number: int) -> np.ndarray:
    """The tokens of one document and its end."""
    return add_special_tokens(self.before, self.ids[slice(*self.offsets[number:][:2])], self.eos_id)

  @property
  def bos_id(self) -> int:
    """The token before a text that is read as a whole."""
    return self.eos_id if self.begin is None else self.begin

  @property
  def frame(self) -> tuple[int, ...]:
    """That, and the token behind such a text where it is another."""
    return tuple(dict.fromkeys((self.bos_id, self.eos_id)))

  def sides(self, number: int) -> tuple[np.ndarray, ...]:
    """What a document has side by side: one text."""
    return (self.document(number),)


@dataclasses.dataclass(frozen=True, eq=False)
class InfiniteDocuments:
  """The tokens of documents that have no end, each encoded when it is read.

  Attributes:
    name: source and split, for messages.
    texts: by their numbers.
    field: of a document that they are.
  """

  documents = targets = corpora.INFINITE

  name: str
  texts: Sequence[str]
  tokenizer: protocol.Tokenizer
  field: str = 'text'

  def document(self, number: int) -> np.ndarray:
    """The tokens of one document and its end."""
    ids = encoded(self.texts[number], self.tokenizer, self.name, self.field)
    return add_special_tokens(before(self.tokenizer, self.field), ids, self.tokenizer.eos_id)

  @property
  def bos_id(self) -> int:
    """As of `Tokens`."""
    return self.tokenizer.bos_id

  @property
  def frame(self) -> tuple[int, ...]:
    """As of `Tokens`."""
    return tuple(dict.fromkeys((self.bos_id, self.tokenizer.eos_id)))

  def sides(self, number: int) -> tuple[np.ndarray, ...]:
    return (self.document(number),)


def add_special_tokens(before: Sequence[int], ids: np.ndarray, end: int) -> np.ndarray:
  """Tokens with what stands before and behind, int64."""
  return np.concatenate([np.array(before, np.int64), ids, [end]])


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
  """The tokens of a split's pairs: document d of the target is that of document d of the source."""

  name: str
  source: Tokens | InfiniteDocuments
  target: Tokens | InfiniteDocuments

  @property
  def documents(self) -> int:
    return self.target.documents

  @property
  def targets(self) -> int:
    return self.target.targets

  def sides(self, number: int) -> tuple[np.ndarray, ...]:
    """Source and target of a pair."""
    return self.source.document(number), self.target.document(number)

  @property
  def sizes(self) -> np.ndarray:
    """Tokens of source and target of each pair, either with its end, int64 [documents, 2]."""
    return np.concatenate([self.source.sizes, self.target.sizes], 1)

  @property
  def bos_id(self) -> int:
    """The token that a target is continued from."""
    return self.target.bos_id


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledTexts:
  """The tokens of a split's texts, and what is to be told of them.

  Attributes:
    text: the tokens.
    classes: int32 [documents], the class of each text; or, where words have classes, int32 [N] beside
      `text.ids`: of a word at its first token, and -1 at others; or what tells these as they are read, where
      there is no end.
    names: of the classes, in the order of their numbers.
    words: whether it is words that have classes.
  """

  name: str
  text: Tokens | InfiniteDocuments
  classes: 'np.ndarray | Labels | WordLabels'
  names: tuple[str, ...]
  words: bool = False

  @property
  def documents(self) -> int:
    return self.text.documents

  @property
  def targets(self) -> int:
    return self.text.targets

  def told(self, number: int) -> np.ndarray:
    """The class of a document, int32 []; or those beside its tokens, without its end, int32 [T]."""
    at = (
      slice(*self.text.offsets[number:][:2]) if self.words and self.documents != corpora.INFINITE else number
    )
    return np.asarray(self.classes[at], np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
  """The class of each of the documents that have no end."""

  labels: Sequence[str]
  names: tuple[str, ...]

  def __getitem__(self, number: int) -> int:
    return self.names.index(self.labels[number])


@dataclasses.dataclass(frozen=True, eq=False)
class WordLabels:
  """The classes beside the tokens of each of the documents that have no end."""

  text: InfiniteDocuments
  labels: Sequence[str]
  names: tuple[str, ...]

  def __getitem__(self, number: int) -> np.ndarray:
    written, tokenizer = self.text.texts[number], self.text.tokenizer
    sizes = tokenizer.token_bytes[tokenizer.encode(written)]
    return beside(
      written,
      [self.names.index(label) for label in self.labels[number].split(' ')],
      sizes,
      f'{self.text.name}[{number}]',
    )


def beside(written: str, classes: Sequence[int], sizes: np.ndarray, name: str) -> np.ndarray:
  """The classes of a text's words, each at that token which holds the first byte of the word, and -1
  elsewhere: int32 [T].

  Args:
    sizes: [T], the bytes of each token of the text.

  Raises:
    ValueError: if there are not as many words as classes.
  """
  words = np.array([len(word.encode()) + 1 for word in written.split(' ')])
  if len(words) != len(classes):
    raise ValueError(
      f'{name} has {len(words)} words and {len(classes)} labels; give each word one, words being divided by '
      'one space'
    )
  told = np.full(len(sizes), -1, np.int32)
  told[np.searchsorted(np.cumsum(sizes), np.cumsum(words) - words, side='right')] = classes
  return told


@dataclasses.dataclass(frozen=True, eq=False)
class AnsweredTexts:
  """The tokens of a split's texts, and which of their bytes are answers.

  Attributes:
    answers: of each text, spans `first:last` of its bytes in UTF-8, divided by spaces; the end of a text is
      one byte more.
    token_bytes: [V], the bytes of each token.
  """

  name: str
  text: Tokens | InfiniteDocuments
  answers: Sequence[str]
  token_bytes: np.ndarray

  @property
  def documents(self) -> int:
    return self.text.documents

  @property
  def targets(self) -> int:
    return self.text.targets

  @property
  def sizes(self) -> np.ndarray:
    return self.text.sizes

  def sides(self, number: int) -> tuple[np.ndarray, ...]:
    return self.text.sides(number)

  @property
  def bos_id(self) -> int:
    return self.text.bos_id

  def told(self, number: int, tokens: np.ndarray) -> np.ndarray:
    """1 for those of a document's tokens, its end the last of them, that hold any of an answer; 0 for others.

    Raises:
      ValueError: for an answer outside of the text.
    """
    sizes = self.token_bytes[tokens]
    sizes[-1] = 1
    ends, found = np.cumsum(sizes), np.zeros(len(tokens), np.int32)
    for span in self.answers[number].split():
      first, last = map(int, span.split(':'))
      if not 0 <= first < last <= ends[-1]:
        raise ValueError(f'{self.name}[{number}] has an answer at {span}, and {ends[-1]} bytes with its end')
      found[np.searchsorted(ends, first, 'right') : np.searchsorted(ends, last) + 1] = 1
    return found


def tokenize(
  corpus: corpora.Corpus, split: str, field: str, tokenizer: protocol.Tokenizer, cache_dir: pathlib.Path
) -> Tokens | InfiniteDocuments:
  """Encodes one field of a split once and keeps the result under the corpus's hash and the tokenizer's; what
  has no end is encoded as it is read.

  Raises:
    ValueError: if the corpus has no such split, or the tokenizer loses some of the text.
  """
  if split not in corpus.splits:
    raise ValueError(f'{corpus.name} has no split {split!r}; known: {", ".join(corpus.splits)}')
  name = f'{corpus.name} {split}' if corpus.texts == ('text',) else f'{corpus.name} {split} {field}'
  texts = corpus.splits[split][field]
  if len(texts) == corpora.INFINITE:
    return InfiniteDocuments(name, texts, tokenizer, field)
  dtype = np.dtype('<u2' if tokenizer.vocab_size <= 2**16 else '<u4')

  def write(directory: pathlib.Path):
    offsets, size = [0], 0
    with (directory / 'ids').open('wb') as file:
      for text in progress.track(texts, f'tokenizing {name}', len(texts)):
        ids = encoded(text, tokenizer, name, field)
        size += len(text.encode())
        ids.astype(dtype).tofile(file)
        offsets.append(offsets[-1] + len(ids))
    np.save(directory / 'offsets.npy', np.array(offsets, np.int64))
    (directory / 'bytes').write_text(str(size))

  key = f'{corpus.hash}-{tokenizer.identity}-{split}-{field}'
  directory = cache.once(cache_dir / 'tokens' / key, write)
  offsets = np.load(directory / 'offsets.npy', mmap_mode='r')
  size = (directory / 'ids').stat().st_size
  if size != int(offsets[-1]) * dtype.itemsize:
    raise ValueError(f'{directory} is damaged: {size} bytes for {offsets[-1]} tokens; delete it')
  # A file without any bytes cannot be mapped.
  ids = np.memmap(directory / 'ids', dtype, 'r') if size else np.zeros(0, dtype)
  return Tokens(
    name,
    ids,
    offsets,
    tokenizer.eos_id,
    int((directory / 'bytes').read_text()),
    tokenizer.bos_id,
    before(tokenizer, field),
  )


def before(tokenizer: protocol.Tokenizer, field: str) -> tuple[int, ...]:
  """The tokens before the texts of a field, behind that which a text is continued from."""
  return {'source': tokenizer.source_prefix, 'target': tokenizer.target_prefix}.get(field, ())


def encoded(text: str, tokenizer: protocol.Tokenizer, name: str, field: str) -> np.ndarray:
  """The tokens of a text that is a field of a document.

  Raises:
    ValueError: if the tokenizer loses some of it.
  """
  ids = (tokenizer.encode_source if field == 'source' else tokenizer.encode)(text)
  if tokenizer.is_lossless and (written := int(tokenizer.token_bytes[ids].sum())) != len(text.encode()):
    raise ValueError(
      f'{tokenizer.identity} writes {len(text.encode())} bytes of {name} as '
      f'{written}; its pieces must join to the text'
    )
  return ids
