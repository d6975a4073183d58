"""Memorization: values of keys that are the same in all texts."""

import dataclasses
import functools
import random

from tfm.data import synthetic_task
from tfm.spec import NonNegativeInt, Size


@dataclasses.dataclass(frozen=True)
class Memorization(synthetic_task.LengthTask):
  """. k2 v4 k7 v1 …: random keys, each followed by its value, which is the same in all texts of all splits
  and so must be learnt, as nothing in the text tells it; the answers are the values (Poli et al. 2024, MAD,
  §3.1, where the value stands at the place after its key).

  Attributes:
    length, longer: the number of symbols of a text, without the dot, in training and in the test split; even;
      longer=None: the test split is as training.
    vocabulary: the number of keys and values together; half of them are keys, each with a value of its own.
    facts: the seed of the values.
  """

  length: Size = 32
  longer: Size | None = None
  vocabulary: Size = 256
  facts: NonNegativeInt = 0

  def __post_init__(self):
    super().__post_init__()
    for name in ('length', 'longer'):
      if (length := getattr(self, name)) is not None and (length < 2 or length % 2):
        raise ValueError(f'{name}={length} must be even and at least 2: a key and its value')
    if self.vocabulary < 4:
      raise ValueError(f'vocabulary={self.vocabulary} must be at least 4: two keys and two values')

  @functools.cached_property
  def values(self) -> list[int]:
    """The value of each key."""
    count = self.vocabulary // 2
    return random.Random(f'facts {self.facts}').sample(range(count), count)

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    parts = [('.', False)]
    for _ in range(self.max_length(is_test) // 2):
      key = draw.randrange(len(self.values))
      parts += [(f' k{key + 1}', False), (f' v{self.values[key] + 1}', True)]
    return synthetic_task.format_example(parts)
