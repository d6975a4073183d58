"""A dictionary and one question."""

import dataclasses
import random

from tfm.data import task

FIRST = '.'


@dataclasses.dataclass(frozen=True)
class Lookup(task.Task):
  """. k7 k3 5 k7 2 k9 5 … is 2: a key, then pairs of a key and a digit in any order; the digit beside that key is the
  label.

  Retrieval from a long text as a classification, for encoders: what a window of tokens sees does not tell, as question
  and answer stand anywhere. The queries of multi-query associative recall (Arora et al. 2023) reduced to one, which
  stands at the beginning. Words are divided by spaces, and a full stop stands before the first, so that with
  tokenizer='words' each is one token.

  Attributes:
    pairs: of a text, of 2 pairs + 2 words.
    keys: that there are; those of a text are all different.
  """

  fields = ('text', 'label')
  classes = tuple(map(str, range(10)))

  pairs: int = 31
  keys: int = 128

  def __post_init__(self):
    super().__post_init__()
    if self.pairs < 1:
      raise ValueError(f'pairs={self.pairs} must be at least 1')
    if self.keys < self.pairs:
      raise ValueError(f'keys={self.keys} are too few for {self.pairs} different ones; give as many')

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    held = {key: draw.randrange(10) for key in draw.sample(range(1, self.keys + 1), self.pairs)}
    asked = draw.choice([*held])
    words = [FIRST, f'k{asked}', *(word for key, digit in held.items() for word in (f'k{key}', str(digit)))]
    return ' '.join(words), str(held[asked])
