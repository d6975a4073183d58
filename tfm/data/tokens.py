"""The tokens of a split: one flat array on disk with the offsets of its documents."""

import dataclasses
import pathlib
from collections.abc import Sequence

import numpy as np

from tfm.data import cache, progress_bar
from tfm.data.corpus import Corpus
from tfm.data.documents import INFINITE
from tfm.data.token_shards import ShardedIds, TokenColumn
from tfm.data.tokenizers.protocol import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Tokens:
  """The tokens of a split's documents, without special tokens.

  Attributes:
    name: source and split, for messages.
    ids: unsigned integers [N], memory mapped, or read from a folder or a bucket when they are indexed.
    offsets: int64 [documents + 1]; document d is `ids[offsets[d]:offsets[d + 1]]`.
    eos_id: the token at the end of every document.
    bytes: the size of the text in UTF-8, for bits per byte.
    bos: the token at the beginning of a text; None for `eos_id`.
    prefix: the tokens before every document.
  """

  name: str
  ids: np.ndarray | ShardedIds
  offsets: np.ndarray
  eos_id: int
  bytes: int
  bos: int | None = None
  prefix: tuple[int, ...] = ()

  @property
  def documents(self) -> int:
    """The number of documents."""
    return len(self.offsets) - 1

  @property
  def lengths(self) -> np.ndarray:
    """The number of tokens of each document, int64 [documents]."""
    return np.diff(self.offsets)

  @property
  def sequence_lengths(self) -> np.ndarray:
    """The number of tokens of each document with its prefix and end, int64 [documents, 1]."""
    return self.lengths[:, None] + len(self.prefix) + 1

  @property
  def targets(self) -> int:
    """The number of tokens to predict in one epoch: all, and the end of every document."""
    return len(self.ids) + self.documents

  def document(self, index: int) -> np.ndarray:
    """Returns the tokens of one document with its prefix and end."""
    return add_special_tokens(self.prefix, self.ids[slice(*self.offsets[index:][:2])], self.eos_id)

  @property
  def bos_id(self) -> int:
    """The token at the beginning of a text."""
    return self.eos_id if self.bos is None else self.bos

  @property
  def boundary_ids(self) -> tuple[int, ...]:
    """`bos_id`, and `eos_id` if it differs."""
    return tuple(dict.fromkeys((self.bos_id, self.eos_id)))

  def sequences(self, index: int) -> tuple[np.ndarray, ...]:
    """Returns the sequences of a document: one text."""
    return (self.document(index),)


@dataclasses.dataclass(frozen=True, eq=False)
class InfiniteDocuments:
  """The tokens of infinitely many documents, each encoded when it is read.

  Attributes:
    name: source and split, for messages.
    texts: the texts, by index.
    field: the field of the documents that the texts are.
  """

  documents = targets = INFINITE

  name: str
  texts: Sequence[str]
  tokenizer: Tokenizer
  field: str = 'text'

  def document(self, index: int) -> np.ndarray:
    """Returns the tokens of one document with its prefix and end."""
    ids = encode_field(self.texts[index], self.tokenizer, self.name, self.field)
    return add_special_tokens(field_prefix(self.tokenizer, self.field), ids, self.tokenizer.eos_id)

  @property
  def bos_id(self) -> int:
    """As `Tokens.bos_id`."""
    return self.tokenizer.bos_id

  @property
  def boundary_ids(self) -> tuple[int, ...]:
    """As `Tokens.boundary_ids`."""
    return tuple(dict.fromkeys((self.bos_id, self.tokenizer.eos_id)))

  def sequences(self, index: int) -> tuple[np.ndarray, ...]:
    """As `Tokens.sequences`."""
    return (self.document(index),)


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
  """The tokens of a split's pairs: document d of the source belongs to document d of the target."""

  name: str
  source: Tokens | InfiniteDocuments
  target: Tokens | InfiniteDocuments

  @property
  def documents(self) -> int:
    return self.target.documents

  @property
  def targets(self) -> int:
    return self.target.targets

  def sequences(self, index: int) -> tuple[np.ndarray, ...]:
    """Returns the source and the target of a pair."""
    return self.source.document(index), self.target.document(index)

  @property
  def sequence_lengths(self) -> np.ndarray:
    """The number of tokens of source and target of each pair, with their ends, int64 [documents, 2]."""
    return np.concatenate([self.source.sequence_lengths, self.target.sequence_lengths], 1)

  @property
  def bos_id(self) -> int:
    """The first input of the decoder."""
    return self.target.bos_id


@dataclasses.dataclass(frozen=True, eq=False)
class Preferences:
  """The tokens of a split's prompts, and of the chosen and the rejected continuation of each."""

  name: str
  prompt: Tokens
  chosen: Tokens
  rejected: Tokens

  @property
  def documents(self) -> int:
    return self.prompt.documents

  @property
  def targets(self) -> int:
    return self.chosen.targets + self.rejected.targets

  @property
  def bos_id(self) -> int:
    return self.prompt.bos_id

  @property
  def sequence_lengths(self) -> np.ndarray:
    """The number of tokens of each prompt with either continuation and its end, int64 [documents, 2]."""
    continuations = [self.chosen.sequence_lengths, self.rejected.sequence_lengths]
    return self.prompt.lengths[:, None] + np.concatenate(continuations, 1)

  def sequences(self, index: int) -> tuple[np.ndarray, ...]:
    """Returns the prompt with the chosen, and with the rejected continuation."""
    prompt = self.prompt.document(index)[:-1]
    return tuple(np.append(prompt, side.document(index)) for side in (self.chosen, self.rejected))


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledTexts:
  """The tokens of a split's texts, and their labels.

  Attributes:
    text: the tokens.
    classes: int32 [documents], the class of each text; or, with word labels, int32 [N], aligned with
      `text.ids`: the class of a word at its first token, and -1 at other tokens; or, for infinitely many
      documents, what computes these when they are read.
    names: the class names, in the order of their numbers.
    has_word_labels: whether words have classes, not texts.
  """

  name: str
  text: Tokens | InfiniteDocuments
  classes: 'np.ndarray | Labels | WordLabels'
  names: tuple[str, ...]
  has_word_labels: bool = False

  @property
  def documents(self) -> int:
    return self.text.documents

  @property
  def targets(self) -> int:
    return self.text.targets

  def labels(self, index: int) -> np.ndarray:
    """Returns the class of a document, int32 []; or those of its tokens, without its end, int32 [T]."""
    key = index
    if self.has_word_labels and self.documents != INFINITE:
      key = slice(*self.text.offsets[index:][:2])
    return np.asarray(self.classes[key], np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
  """The class of each of infinitely many documents."""

  labels: Sequence[str]
  names: tuple[str, ...]

  def __getitem__(self, index: int) -> int:
    return self.names.index(self.labels[index])


@dataclasses.dataclass(frozen=True, eq=False)
class WordLabels:
  """The classes of the tokens of each of infinitely many documents."""

  documents: InfiniteDocuments
  labels: Sequence[str]
  names: tuple[str, ...]

  def __getitem__(self, index: int) -> np.ndarray:
    text, tokenizer = self.documents.texts[index], self.documents.tokenizer
    sizes = tokenizer.token_bytes[tokenizer.encode(text)]
    classes = [self.names.index(label) for label in self.labels[index].split(' ')]
    return align_word_labels(text, classes, sizes, f'{self.documents.name}[{index}]')


def align_word_labels(text: str, classes: Sequence[int], sizes: np.ndarray, name: str) -> np.ndarray:
  """Returns the class of each word at the token with the word's first byte, and -1 at other tokens: int32
  [T].

  Args:
    sizes: [T], the bytes of each token of the text.

  Raises:
    ValueError: if the number of words differs from the number of classes.
  """
  word_sizes = np.array([len(word.encode()) + 1 for word in text.split(' ')])
  if len(word_sizes) != len(classes):
    raise ValueError(
      f'{name} has {len(word_sizes)} words and {len(classes)} labels; give each word one label, and separate '
      'words by one space'
    )
  aligned = np.full(len(sizes), -1, np.int32)
  aligned[np.searchsorted(np.cumsum(sizes), np.cumsum(word_sizes) - word_sizes, side='right')] = classes
  return aligned


@dataclasses.dataclass(frozen=True, eq=False)
class AnsweredTexts:
  """The tokens of a split's texts, and which of their bytes are answers.

  Attributes:
    answers: for each text, byte ranges `first:last` in UTF-8, separated by spaces; the end of the text
      counts as one more byte.
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
  def sequence_lengths(self) -> np.ndarray:
    return self.text.sequence_lengths

  def sequences(self, index: int) -> tuple[np.ndarray, ...]:
    return self.text.sequences(index)

  @property
  def bos_id(self) -> int:
    return self.text.bos_id

  def answer_mask(self, index: int, tokens: np.ndarray) -> np.ndarray:
    """Returns 1 for each token of a document, its end included, that has a byte of an answer, and 0 for
    others.

    Raises:
      ValueError: for an answer outside of the text.
    """
    sizes = self.token_bytes[tokens]
    sizes[-1] = 1
    ends, mask = np.cumsum(sizes), np.zeros(len(tokens), np.int32)
    for span in self.answers[index].split():
      first, last = map(int, span.split(':'))
      if not 0 <= first < last <= ends[-1]:
        raise ValueError(
          f'{self.name}[{index}] has an answer at {span}, but the text has {ends[-1]} bytes including its end'
        )
      mask[np.searchsorted(ends, first, 'right') : np.searchsorted(ends, last) + 1] = 1
    return mask


def tokenize(
  corpus: Corpus, split: str, field: str, tokenizer: Tokenizer, cache_dir: pathlib.Path
) -> Tokens | InfiniteDocuments:
  """Encodes one field of a split and stores the result under the hashes of corpus and tokenizer.

  Documents of an infinite split are encoded when they are read, and prepared ones already are.

  Raises:
    ValueError: if the corpus does not have the split, or the tokenizer loses a part of the text.
  """
  if split not in corpus.splits:
    raise ValueError(f'{corpus.name} has no split {split!r}; known: {", ".join(corpus.splits)}')
  name = f'{corpus.name} {split}' if corpus.input_fields == ('text',) else f'{corpus.name} {split} {field}'
  texts = corpus.splits[split][field]
  if len(texts) == INFINITE:
    return InfiniteDocuments(name, texts, tokenizer, field)
  special = dict(eos_id=tokenizer.eos_id, bos=tokenizer.bos_id, prefix=field_prefix(tokenizer, field))
  if isinstance(texts, TokenColumn):
    return Tokens(name, texts.ids, texts.offsets, bytes=texts.bytes, **special)
  dtype = id_dtype(tokenizer)

  def write(directory: pathlib.Path):
    offsets, size = [0], 0
    with (directory / 'ids').open('wb') as file:
      for text in progress_bar.track(texts, f'tokenizing {name}', len(texts)):
        ids = encode_field(text, tokenizer, name, field)
        size += len(text.encode())
        ids.astype(dtype).tofile(file)
        offsets.append(offsets[-1] + len(ids))
    np.save(directory / 'offsets.npy', np.array(offsets, np.int64))
    (directory / 'bytes').write_text(str(size), encoding='utf-8')

  key = f'{corpus.hash}-{tokenizer.identity}-{split}-{field}'
  directory = cache.create_once(cache_dir / 'tokens' / key, write)
  offsets = np.load(directory / 'offsets.npy', mmap_mode='r')
  # An empty file cannot be mapped.
  ids = np.memmap(directory / 'ids', dtype, 'r') if offsets[-1] else np.zeros(0, dtype)
  text_bytes = int((directory / 'bytes').read_text(encoding='utf-8'))
  return Tokens(name, ids, offsets, bytes=text_bytes, **special)


def id_dtype(tokenizer: Tokenizer) -> np.dtype:
  """Returns the type in which the tokens of a vocabulary are stored."""
  return np.dtype('<u2' if tokenizer.vocab_size <= 2**16 else '<u4')


def add_special_tokens(prefix: Sequence[int], ids: np.ndarray, eos_id: int) -> np.ndarray:
  """Returns tokens with a prefix and an end, int64."""
  return np.concatenate([np.array(prefix, np.int64), ids, [eos_id]])


def field_prefix(tokenizer: Tokenizer, field: str) -> tuple[int, ...]:
  """Returns the tokens before the texts of a field, after `bos_id`."""
  return {'source': tokenizer.source_prefix, 'target': tokenizer.target_prefix}.get(field, ())


def encode_field(text: str, tokenizer: Tokenizer, name: str, field: str) -> np.ndarray:
  """Returns the tokens of a text that is a field of a document.

  Raises:
    ValueError: if the tokenizer cannot encode the text, or loses a part of it.
  """
  try:
    ids = (tokenizer.encode_source if field == 'source' else tokenizer.encode)(text)
  except ValueError as error:
    raise ValueError(f'{name} cannot be encoded: {error}') from error
  if tokenizer.is_lossless and (size := int(tokenizer.token_bytes[ids].sum())) != len(text.encode()):
    raise ValueError(
      f'{tokenizer.identity} encodes {len(text.encode())} bytes of {name} as {size} bytes; its pieces must '
      'join to the text'
    )
  return ids
