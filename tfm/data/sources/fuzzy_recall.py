"""Fuzzy in-context recall: keys and values of several symbols."""

import dataclasses
import random

from tfm.data import synthetic_task
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class FuzzyRecall(synthetic_task.LengthTask):
  """. k2 k5 v4 k1 v1 v3 k2 k5 v4 …: as `in_context_recall`, but a key and a value have one to three symbols,
  so that a model must find where they begin and end (Poli et al. 2024, MAD, §3.1, "fuzzy in-context recall",
  and its published generator). The answers are all symbols of values of keys that the text has had; the last
  key is one of these. In the test split all keys have the greatest number of symbols.

  Attributes:
    length, longer: the most symbols of a text, without the dot, in training and in the test split; a text is
      shorter by less than two pairs; longer=None: the test split is of the same length.
    vocabulary: the number of symbols of keys and of values together; half of them are of keys.
    key_symbols, value_symbols: the most symbols of a key and of a value, which are different symbols.
  """

  length: Size = 128
  longer: Size | None = None
  vocabulary: Size = 16
  key_symbols: Size = 3
  value_symbols: Size = 3

  def __post_init__(self):
    super().__post_init__()
    keys = self.vocabulary // 2
    for name, count in (('key_symbols', keys), ('value_symbols', self.vocabulary - keys)):
      if not 1 <= getattr(self, name) <= count:
        raise ValueError(f'{name}={getattr(self, name)} must lie in 1 … {count}, half of the vocabulary')
    least = 2 * (self.key_symbols + self.value_symbols)
    if self.length < least:
      raise ValueError(f'length={self.length} has no room for the longest pair twice; use at least {least}')

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    keys = self.vocabulary // 2
    longest = self.key_symbols + self.value_symbols
    values, parts = {}, [('.', False)]

    def add_pair(key):
      is_known = key in values
      size = draw.randint(1, self.value_symbols)
      value = values.setdefault(key, tuple(draw.sample(range(self.vocabulary - keys), size)))
      parts.extend((f' k{symbol + 1}', False) for symbol in key)
      parts.extend((f' v{symbol + 1}', is_known) for symbol in value)

    while len(parts) - 1 <= self.max_length(is_test) - 2 * longest:
      size = self.key_symbols if is_test else draw.randint(1, self.key_symbols)
      add_pair(tuple(draw.sample(range(keys), size)))
    add_pair(draw.choice(sorted(values)))
    return synthetic_task.format_example(parts)
