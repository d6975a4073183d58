"""Mixtures: the corpora of several sources as one, and the documents of a split of each."""

import bisect
import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tfm.data.corpus import Corpus
from tfm.data.documents import INFINITE, Field
from tfm.errors import require


@dataclasses.dataclass(frozen=True)
class MixedCorpus(Corpus):
  """The documents of several corpora, one corpus after another; its hash covers them all.

  Attributes:
    weights: of each corpus, by its name in the mixture; their sum is 1.
    parts: the corpora, by the same names.
  """

  weights: Mapping[str, Fraction] = dataclasses.field(default_factory=dict)
  parts: Mapping[str, Corpus] = dataclasses.field(default_factory=dict)

  @classmethod
  def join(cls, name: str, weights: Mapping[str, Fraction], parts: Mapping[str, Corpus]) -> 'MixedCorpus':
    """Returns the mixture of corpora whose documents have the same fields, with the splits that all have."""
    content = [(part, str(weights[part]), parts[part].hash) for part in sorted(parts)]
    digest = hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()
    corpora = [*parts.values()]
    splits = {
      split: {field: _JoinedColumn([corpus.splits[split][field] for corpus in corpora]) for field in columns}
      for split, columns in corpora[0].splits.items()
      if all(split in corpus.splits for corpus in corpora)
    }
    finite = [split for split in splits if all(split in corpus.bytes for corpus in corpora)]
    sizes = {split: sum(corpus.bytes[split] for corpus in corpora) for split in finite}
    tokenizers = {}
    for part, corpus in parts.items():
      for field, prepared in corpus.tokenizers.items():
        first = tokenizers.setdefault(field, prepared)
        require(
          prepared.tokenizer == first.tokenizer,
          f'{part} of {name} is prepared with {prepared.tokenizer.identity}, and another source with '
          f'{first.tokenizer.identity}; prepare them together, with one tokenizer',
        )
    return cls(name, digest, splits, sizes, tokenizers=tokenizers, weights=weights, parts=parts)

  def __str__(self):
    parts = [f'\n  {name}, {float(self.weights[name])}: {corpus}' for name, corpus in self.parts.items()]
    return ''.join([super().__str__(), *parts])

  def training_texts(self, fields: tuple[str, ...]) -> Iterator[str]:
    """Yields texts of every part with its weight as its share of their bytes: as much text as all parts have
    together, so one that is too small for its weight is repeated.
    """
    sizes = [
      corpus.bytes.get('train') or sum(len(text.encode()) for text in corpus.training_texts(fields))
      for corpus in self.parts.values()
    ]

    def repeat(corpus):
      while True:
        yield from corpus.training_texts(fields)

    repeated = {name: repeat(corpus) for name, corpus in self.parts.items()}
    drawn = dict.fromkeys(self.parts, 0)
    while sum(drawn.values()) < sum(sizes):
      name = min(drawn, key=lambda name: drawn[name] / self.weights[name])
      text = next(repeated[name])
      drawn[name] += len(text.encode())
      yield text


@dataclasses.dataclass(frozen=True, eq=False)
class MixedDocuments:
  """The documents of a split of every part of a mixture.

  Attributes:
    name: source and split, for messages.
    weights: of each part, by name; their sum is 1.
    parts: the documents, by the same names, such as `Tokens`.
  """

  name: str
  weights: Mapping[str, Fraction]
  parts: Mapping[str, Any]

  @property
  def names(self) -> tuple[str, ...]:
    """The class names, in the order of their numbers.

    Raises:
      ValueError: if the parts have different ones.
    """
    (first, expected), *others = ((name, documents.names) for name, documents in self.parts.items())
    for name, names in others:
      if names != expected:
        raise ValueError(
          f'{self.name}: {first} has the classes {", ".join(expected)} and {name} has {", ".join(names)}; a '
          'mixture needs the same classes in all sources'
        )
    return expected


def split_mixture(documents: Any) -> tuple[Mapping[str, Fraction], Mapping[str, Any]]:
  """Returns the weights and the documents of the parts of a mixture; other documents are one part, ''."""
  if isinstance(documents, MixedDocuments):
    return documents.weights, documents.parts
  return {'': Fraction(1)}, {'': documents}


class _JoinedColumn(Sequence):
  """The values of several columns, one column after another."""

  def __init__(self, columns: Sequence[Sequence[Field]]):
    self._columns, self._ends = columns, [*itertools.accumulate(map(len, columns))]

  def __len__(self):
    return min(self._ends[-1], INFINITE)

  def __getitem__(self, index: int) -> Field:
    if not 0 <= index < len(self):
      raise IndexError(index)
    place = bisect.bisect_right(self._ends, index)
    return self._columns[place][index - self._ends[place - 1] if place else index]

  def __iter__(self) -> Iterator[Field]:
    return itertools.chain.from_iterable(self._columns)
