"""Synthetic tasks as sources: generated examples with their answers."""

import abc
import dataclasses
import hashlib
import random
from collections.abc import Iterable
from typing import ClassVar

from tfm.data.corpus import generate_corpus
from tfm.data.documents import ANSWERS, INFINITE
from tfm.data.sources import protocol
from tfm.spec import NonNegativeInt, PositiveInt, Size


PARTS = 8  # of all possible documents, one part belongs to validation and one to test
MAX_DRAWS = 10_000  # for a document of a given split


@dataclasses.dataclass(frozen=True)
class Task(protocol.Source):
  """Texts whose answers are known. A document is a function of (seed, split, index) alone.

  No text of the training split is in the validation or the test split, and these two are disjoint: the hash
  of a text decides its split, and examples are drawn until one belongs to the split.

  Attributes:
    examples: the number of training examples; None: infinite.
    held_out: the number of validation examples, and of test examples.
    seed: of the random examples.
    assigns_by_hash: whether the hash of a text decides its split; unnecessary where so many texts are
      possible that two draws are never equal.
    classes: the class names, if examples have labels.
  """

  fields = ('text', ANSWERS)
  assigns_by_hash: ClassVar[bool] = True
  classes: ClassVar[tuple[str, ...]] = ()

  _: dataclasses.KW_ONLY
  examples: PositiveInt | None = None
  held_out: PositiveInt = 1000
  seed: NonNegativeInt = 0

  @property
  def is_infinite(self):
    return self.examples is None

  def open_corpus(self, store):
    train = INFINITE if self.is_infinite else self.examples
    sizes = dict(train=train, validation=self.held_out, test=self.held_out)
    return generate_corpus(self.spec, self._document, sizes, self.fields, self.classes)

  @abc.abstractmethod
  def example(self, draw: random.Random, is_test: bool) -> tuple[str, ...]:
    """Returns the fields of a random example.

    Args:
      is_test: whether the example is for the test split, which may be harder.
    """

  def draw(self, split: str, index: int) -> random.Random:
    """The random numbers of a document."""
    return random.Random(f'{self.seed} {split} {index}')

  def _document(self, split: str, index: int) -> tuple[str, ...]:
    draw = self.draw(split, index)
    for _ in range(MAX_DRAWS):
      example = self.example(draw, split == 'test')
      if not self.assigns_by_hash or _split_of(example[0]) == split:
        return example
    raise ValueError(
      f'{self.spec} has too few different texts for a disjoint {split} split; use a greater length'
    )


@dataclasses.dataclass(frozen=True)
class LengthTask(Task):
  """A task whose examples have a length: 1 … `length` in training and validation, `length` + 1 … `longer` in
  the test split, uniformly distributed where enough texts of each length exist.

  Attributes:
    longer: the greatest length of the test split; None: as training.
  """

  length: Size = 20
  longer: Size | None = 40

  def __post_init__(self):
    if self.longer is not None and self.longer <= self.length:
      raise ValueError(
        f'longer={self.longer} must be greater than length={self.length}, or None for a test split '
        'like training'
      )

  def max_length(self, is_test: bool) -> int:
    """Returns the greatest length, of training or of the test split."""
    return self.longer if is_test and self.longer is not None else self.length

  def draw_length(self, draw: random.Random, is_test: bool) -> int:
    """Returns a random length."""
    longest = self.max_length(is_test)
    return draw.randint(1 if longest == self.length else self.length + 1, longest)


def _split_of(text: str) -> str:
  """Returns the split that a text belongs to."""
  # Not a checksum: that would be linear in the bits, and so related to their parity.
  part = hashlib.blake2b(text.encode(), digest_size=8).digest()[0] % PARTS
  return {0: 'validation', 1: 'test'}.get(part, 'train')


def format_example(parts: Iterable[tuple[str, bool]], end: bool = False) -> tuple[str, str]:
  """Returns a text and the byte ranges of its answers, from (part, whether it is an answer).

  Args:
    end: whether the end of the text belongs to the last answer.
  """
  texts, spans, place = [], [], 0
  for text, is_answer in parts:
    texts.append(text)
    if is_answer:
      spans.append((place, place + len(text.encode())))
    place += len(text.encode())
  if end:
    spans[-1] = spans[-1][0], place + 1
  return ''.join(texts), ' '.join(f'{first}:{last}' for first, last in spans)
