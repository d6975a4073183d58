"""Multi-query associative recall."""

import dataclasses
import math
import random

from tfm.data import synthetic_task
from tfm.spec import NonNegativeFloat, Size


FILLER = '.'


@dataclasses.dataclass(frozen=True)
class Mqar(synthetic_task.LengthTask):
  """. k7 v3 k2 v9 . . k2 v9 k7 v3 . .: pairs of a key and its value, followed by each key again; the values
  after these are the answers (Arora et al. 2023, Zoology, §4, and its published generator).

  After the pairs, a query is at the g-th place of two symbols, 0 ≤ g < (length - 2 pairs) / 2, with a
  probability proportional to (g + 1)^(power - 1), at most one at each place; keys and values are distinct,
  each from one half of the vocabulary. In the published generator the value is the label of the key, and the
  place after the key has the filler; here the value is at that place, as in a text. Words are separated by
  spaces, and a filler precedes the first, so that with tokenizer='words' each symbol is one token.

  Attributes:
    length, longer: the number of symbols of a text, without the first, in training and in the test split;
      all texts of a split have the same length; longer=None: the test split is as training.
    pairs, more: the number of pairs in training and in the test split; more=None: the test split is as
      training.
    vocabulary: the number of keys, values and the filler together.
    power: the smaller, the nearer to the pairs the queries are; 1: uniformly distributed.
    noise: whether the filler between the queries is a random symbol of the vocabulary, as in the
      generator's default, but not in the paper's experiments.
    joined: whether a pair is one symbol, k7=v3, so that no key and value have to be associated before the
      lookup: an easier task, for small models.
  """

  length: Size = 64
  longer: Size | None = None
  pairs: Size = 4
  more: Size | None = None
  vocabulary: Size = 8192
  power: NonNegativeFloat = 0.01
  noise: bool = False
  joined: bool = False

  def __post_init__(self):
    super().__post_init__()
    if self.pairs < 1:
      raise ValueError(f'pairs={self.pairs} must be at least 1')
    if self.more is not None and self.more <= self.pairs:
      raise ValueError(
        f'more={self.more} must be greater than pairs={self.pairs}, or None for a test split like training'
      )
    for is_test in (False, True):
      length, pairs = self.max_length(is_test), self._pairs(is_test)
      if self._places(is_test) < pairs or (length - pairs * self._symbols) % 2:
        raise ValueError(
          f'{"longer" if is_test and self.longer else "length"}={length} must leave an even number of '
          f'symbols after {pairs} pairs, and room for as many queries, {pairs * (self._symbols + 2)} symbols'
        )
      if len(self._keys) < pairs:
        raise ValueError(
          f'vocabulary={self.vocabulary} has {len(self._keys)} keys for {pairs} pairs; use at least '
          f'{2 * pairs + 2}'
        )

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    pairs = self._pairs(is_test)
    symbols = [*zip(draw.sample(self._keys, pairs), draw.sample(self._values, pairs))]
    written = [map(self._word, pair) for pair in symbols]
    words = [(f' {word}', False) for pair in written for word in (('='.join(pair),) if self.joined else pair)]
    places = self._places(is_test)
    queries = [None] * places
    # Sampling without replacement by exponential variables with these rates (Efraimidis & Spirakis 2006).
    times = {g: -math.log(1 - draw.random()) * (g + 1) ** (1 - self.power) for g in range(places)}
    for (key, value), g in zip(symbols, sorted(times, key=times.get)):
      queries[g] = (f' {self._word(key)}', False), (f' {self._word(value)}', True)
    for query in queries:
      words += query or [(f' {self._filler(draw)}', False) for _ in range(2)]
    return synthetic_task.format_example([(FILLER, False), *words])

  @property
  def _symbols(self) -> int:
    """The number of symbols of a pair."""
    return 1 if self.joined else 2

  def _places(self, is_test: bool) -> int:
    """Returns the number of places for a query."""
    return (self.max_length(is_test) - self._symbols * self._pairs(is_test)) // 2

  def _pairs(self, is_test: bool) -> int:
    return self.more if is_test and self.more is not None else self.pairs

  @property
  def _keys(self) -> range:
    return range(1, self.vocabulary // 2)

  @property
  def _values(self) -> range:
    return range(self.vocabulary // 2, self.vocabulary)

  def _word(self, symbol: int) -> str:
    """Returns k1, k2, …, v1, v2, …; the filler for 0."""
    if not symbol:
      return FILLER
    return f'k{symbol}' if symbol in self._keys else f'v{symbol - self._values.start + 1}'

  def _filler(self, draw: random.Random) -> str:
    return self._word(draw.randrange(self.vocabulary) if self.noise else 0)
