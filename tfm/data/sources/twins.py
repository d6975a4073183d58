"""Pairs of words with the same key: retrieval at every word."""

import dataclasses
import random

from tfm.data import synthetic_task
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class Twins(synthetic_task.Task):
  """k7=3 k2=8 k7=5 k2=0 has the labels 5 0 3 8: every key occurs twice, at random places, each time with a
  random digit; the label of a word is the digit of the other word with its key.

  Retrieval for encoders, at every word: the multi-query associative recall of Arora et al. 2023 with
  queries before and after their answers. Without attention to the other word, the accuracy is one in ten.
  Words are separated by spaces; with tokenizer='words' each is one token, except for the first of a text,
  which has no space before it and may be several.

  Attributes:
    pairs: the number of pairs of words in a text.
    keys: the number of keys; each occurs in a text twice or not at all.
  """

  fields = ('text', 'labels')
  classes = tuple(map(str, range(10)))

  pairs: Size = 60
  keys: Size = 64

  def __post_init__(self):
    if self.keys < self.pairs:
      raise ValueError(f'keys={self.keys} must be at least pairs={self.pairs}')

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    words = []
    for key in draw.sample(range(self.keys), self.pairs):
      one, other = draw.randrange(10), draw.randrange(10)
      words += (f'k{key}={one}', other), (f'k{key}={other}', one)
    draw.shuffle(words)
    return ' '.join(word for word, _ in words), ' '.join(str(label) for _, label in words)
