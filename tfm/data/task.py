"""A task as a source: examples that are drawn without end, each with its answers."""

import abc
import dataclasses
import hashlib
import pathlib
import random
from collections.abc import Iterable
from typing import ClassVar

from tfm.data import corpus
from tfm.data.sources import protocol


PARTS = 8  # of the documents there could be, one part is validation's, one the test's
TRIES = 10_000  # draws for a document of one part


@dataclasses.dataclass(frozen=True)
class Task(protocol.Source):
  """Texts whose answers are known. A document is a function of (seed, split, number) alone.

  No text of training stands in the validation or the test split, nor one of these in the other: a text
    belongs to a split by its hash, and is drawn anew until it does.

  Attributes:
    examples: of training, where they are to have an end.
    held_out: examples of validation, and of the test.
    seed: of the draw.
    apart: whether texts are assigned by their hashes; where so many are possible that two draws never give
      one text, it need not be.
    classes: the labels that there are, where an example has one.
  """

  fields = ('text', corpus.ANSWERS)
  apart: ClassVar[bool] = True
  classes: ClassVar[tuple[str, ...]] = ()

  _: dataclasses.KW_ONLY
  examples: int | None = None
  held_out: int = 1000
  seed: int = 0

  def __post_init__(self):
    for field in ('examples', 'held_out'):
      if (count := getattr(self, field)) is not None and count < 1:
        raise ValueError(f'{field}={count} must be at least 1')

  @property
  def is_infinite(self):
    return self.examples is None

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    train = corpus.INFINITE if self.is_infinite else self.examples
    sizes = dict(train=train, validation=self.held_out, test=self.held_out)
    return corpus.drawn(self.spec, self._document, sizes, self.fields, self.classes)

  @abc.abstractmethod
  def example(self, draw: random.Random, beyond: bool) -> tuple[str, ...]:
    """One example, its fields.

    Args:
      beyond: whether it is for the test, which may be harder.
    """

  def _document(self, split: str, number: int) -> tuple[str, ...]:
    draw = random.Random(f'{self.seed} {split} {number}')
    for _ in range(TRIES):
      found = self.example(draw, split == 'test')
      if not self.apart or _split(found[0]) == split:
        return found
    raise ValueError(
      f'{self.spec} has too few different texts for a {split} split of its own; let them be longer'
    )


@dataclasses.dataclass(frozen=True)
class Lengths(Task):
  """A task whose examples have a length: 1 … `length` in training and validation, and in the test `length` +
  1 … `longer`, all lengths alike often where enough texts are so long.

  Attributes:
    longer: None: the test is as training.
  """

  length: int = 20
  longer: int | None = 40

  def __post_init__(self):
    super().__post_init__()
    if self.length < 1:
      raise ValueError(f'length={self.length} must be at least 1')
    if self.longer is not None and self.longer <= self.length:
      raise ValueError(
        f'longer={self.longer} is not beyond length={self.length}; give more, or None for a test that is as '
        'training'
      )

  def most(self, beyond: bool) -> int:
    """The greatest length, of training or of the test."""
    return self.longer if beyond and self.longer is not None else self.length

  def size(self, draw: random.Random, beyond: bool) -> int:
    """A length."""
    most = self.most(beyond)
    return draw.randint(1 if most == self.length else self.length + 1, most)


def _split(text: str) -> str:
  """The split that a text belongs to."""
  # No checksum: one of bits is linear in them, and would say something of their parity.
  part = hashlib.blake2b(text.encode(), digest_size=8).digest()[0] % PARTS
  return {0: 'validation', 1: 'test'}.get(part, 'train')


def written(parts: Iterable[tuple[str, bool]], end: bool = False) -> tuple[str, str]:
  """A text and the spans of its answers, from its parts and whether each is an answer.

  Args:
    end: whether the end of the text is to be told, too, with the last part.
  """
  texts, spans, place = [], [], 0
  for text, answer in parts:
    texts.append(text)
    if answer:
      spans.append((place, place + len(text.encode())))
    place += len(text.encode())
  if end:
    spans[-1] = spans[-1][0], place + 1
  return ''.join(texts), ' '.join(f'{first}:{last}' for first, last in spans)
