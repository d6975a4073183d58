"""Words that come in twos."""

import dataclasses
import random

from tfm.data import task


@dataclasses.dataclass(frozen=True)
class Twins(task.Task):
  """k7=3 k2=8 k7=5 k2=0 has the labels 5 0 3 8: every key stands twice, anywhere, each time with a digit of
  its own, and the label of a word is the digit of its twin.

  Retrieval for encoders, asked at every word: the multi-query associative recall of Arora et al. 2023 with
    questions before and after their answers. A word whose twin a model does not see can be told by chance
    alone, one in ten. Words are divided by spaces; with tokenizer='words' each is one token, but that one at
    the beginning of a text, which has no space before it, may be several.

  Attributes:
    pairs: of words in a text.
    keys: that there are; each is in a text twice or not at all.
  """

  fields = ('text', 'labels')
  classes = tuple(map(str, range(10)))

  pairs: int = 60
  keys: int = 64

  def __post_init__(self):
    super().__post_init__()
    if self.pairs < 1:
      raise ValueError(f'pairs={self.pairs} must be at least 1')
    if self.keys < self.pairs:
      raise ValueError(f'keys={self.keys} are too few for {self.pairs} different ones; give as many')

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    words = []
    for key in draw.sample(range(self.keys), self.pairs):
      one, other = draw.randrange(10), draw.randrange(10)
      words += (f'k{key}={one}', other), (f'k{key}={other}', one)
    draw.shuffle(words)
    return ' '.join(word for word, _ in words), ' '.join(str(label) for _, label in words)
