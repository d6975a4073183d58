"""In-context recall: pairs of a key and its value, again and again."""

import dataclasses
import random

from tfm.data import synthetic_task
from tfm.spec import Rate, Size


@dataclasses.dataclass(frozen=True)
class InContextRecall(synthetic_task.LengthTask):
  """. k2 v4 k1 v1 k2 v4 …: pairs in which a key always has the same value, drawn for each text; the answers
  are the values of keys that the text has had (Poli et al. 2024, MAD, §3.1, with several queries, and its
  published generator). The last key is one of these.

  Words are separated by spaces, and a dot precedes the first, so that with tokenizer='words' each is one
  token.

  Attributes:
    length, longer: the number of symbols of a text, without the dot, in training and in the test split; even;
      all texts of a split have the same length; longer=None: the test split is as training.
    vocabulary: the number of keys and values together; half of them are keys.
    noise: the probability that a pair is noise: two symbols n1, n2, … that are no keys; at least one pair is
      not (noisy in-context recall).
    noise_vocabulary: the number of these symbols.
  """

  length: Size = 128
  longer: Size | None = None
  vocabulary: Size = 16
  noise: Rate = 0.0
  noise_vocabulary: Size = 16

  def __post_init__(self):
    super().__post_init__()
    for name in ('length', 'longer'):
      if (length := getattr(self, name)) is not None and (length < 4 or length % 2):
        raise ValueError(f'{name}={length} must be even and at least 4: a pair, and its key and value again')
    if self.vocabulary < 4:
      raise ValueError(f'vocabulary={self.vocabulary} must be at least 4: two keys and two values')

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    pairs = self.max_length(is_test) // 2
    keys, sure = self.vocabulary // 2, draw.randrange(pairs - 1)
    values, parts = {}, [('.', False)]
    for i in range(pairs):
      is_last = i == pairs - 1
      if not is_last and i != sure and draw.random() < self.noise:
        parts += [(f' n{draw.randrange(self.noise_vocabulary) + 1}', False) for _ in range(2)]
        continue
      key = draw.choice(sorted(values)) if is_last else draw.randrange(keys)
      is_known = key in values
      value = values.setdefault(key, draw.randrange(self.vocabulary - keys))
      parts += [(f' k{key + 1}', False), (f' v{value + 1}', is_known)]
    return synthetic_task.format_example(parts)
