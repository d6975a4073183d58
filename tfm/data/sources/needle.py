"""A needle in a haystack."""

import dataclasses
import itertools
import random

from tfm.data import synthetic_task
from tfm.spec import Fraction, Size


HAY = (
  'The grass is green. ',
  'The sky is blue. ',
  'The sun is yellow. ',
  'Here we go. ',
  'There and back again. ',
)
NEEDLE = 'The pass key is {}. Remember it. '
QUESTION = 'What is the pass key? The pass key is '


@dataclasses.dataclass(frozen=True)
class Needle(synthetic_task.LengthTask):
  """A number is stated somewhere in a long text, and requested at its end: retrieval of a pass key
  (Mohtashami & Jaggi 2023), at a given depth (Kamradt 2023, "Needle in a haystack").

  The text repeats the paper's five sentences, beginning with any of them. The digits of the number at the end
  are the answer.

  Attributes:
    length, longer: the maximum number of characters of a text in training and in the test split, filled
      with as many sentences as fit; longer=None: the test split is as training.
    depth: the fraction of the sentences before the number; None: random, uniformly distributed.
    digits: the number of digits.
  """

  length: Size = 1024
  longer: Size | None = 2048
  depth: Fraction | None = None
  digits: Size = 5

  def __post_init__(self):
    super().__post_init__()
    if self.digits < 1:
      raise ValueError(f'digits={self.digits} must be at least 1')
    if self.depth is not None and not 0 <= self.depth <= 1:
      raise ValueError(f'depth={self.depth} must lie in [0, 1]')
    if self._room(False) < (least := sum(map(len, HAY))):
      raise ValueError(
        f'length={self.length} has no room for a text around the number; use at least '
        f'{self.length - self._room(False) + least}'
      )

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    number = f'{draw.randrange(10**self.digits):0{self.digits}}'
    first = draw.randrange(len(HAY))
    sizes = itertools.accumulate(len(text) for text in itertools.islice(itertools.cycle(HAY), first, None))
    count = sum(1 for _ in itertools.takewhile(lambda size: size <= self._room(is_test), sizes))
    hay = [HAY[(first + i) % len(HAY)] for i in range(count)]
    place = draw.randint(0, count) if self.depth is None else round(self.depth * count)
    text = ''.join([*hay[:place], NEEDLE.format(number), *hay[place:], QUESTION])
    return synthetic_task.format_example([(text, False), (number, True)])

  def _room(self, is_test: bool) -> int:
    """Returns the number of characters for the sentences around the number."""
    return self.max_length(is_test) - len(NEEDLE.format('')) - len(QUESTION) - 2 * self.digits
