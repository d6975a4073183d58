"""Multi-query associative recall."""

import dataclasses
import math
import random

from tfm.data import task


FILLER = '.'


@dataclasses.dataclass(frozen=True)
class Mqar(task.Lengths):
  """. k7 v3 k2 v9 . . k2 v9 k7 v3 . .: pairs of a key and its value, and after them each key once more; the
  values after these are the answers (Arora et al. 2023, Zoology, §4, and its published generator).

  After the pairs a query stands at the g-th place of two symbols, 0 ≤ g < (length - 2 pairs) / 2, with a
  probability of (g + 1)^(power - 1), at most one at a place; keys and values are different ones of half of
  the vocabulary each. The published generator asks for the value where the key stands and leaves the place
  after it to the filler; here it is there, as in a text. Words are divided by spaces, and a filler stands
  before the first, so that with tokenizer='words' each symbol is one token.

  Attributes:
    length, longer: symbols of a text, without the first, in training and in the test, all texts of a split
      being of one length; longer=None: as many in the test.
    pairs, more: in training and in the test; more=None: as many in the test.
    vocabulary: keys, values and the filler together.
    power: the smaller, the nearer to the pairs the queries stand; 1: anywhere alike often.
    noise: whether the filler between the queries is any symbol of the vocabulary, as the generator has it
      by default and the paper's own experiments have not.
    joined: whether a pair is one symbol, k7=v3, so that nothing has to bring a key to its value before any
      key can be looked for: an easier task, for small models.
  """

  length: int = 64
  longer: int | None = None
  pairs: int = 4
  more: int | None = None
  vocabulary: int = 8192
  power: float = 0.01
  noise: bool = False
  joined: bool = False

  def __post_init__(self):
    super().__post_init__()
    if self.pairs < 1:
      raise ValueError(f'pairs={self.pairs} must be at least 1')
    if self.more is not None and self.more <= self.pairs:
      raise ValueError(
        f'more={self.more} are not beyond pairs={self.pairs}; give more, or None for a test that is as '
        'training'
      )
    for beyond in (False, True):
      length, pairs = self.most(beyond), self._pairs(beyond)
      if self._places(beyond) < pairs or (length - pairs * self._symbols) % 2:
        raise ValueError(
          f'{"longer" if beyond and self.longer else "length"}={length} must leave an even number of symbols '
          f'after {pairs} pairs, and have room for as many queries, {pairs * (self._symbols + 2)} symbols'
        )
      if len(self._keys) < pairs:
        raise ValueError(
          f'vocabulary={self.vocabulary} has {len(self._keys)} keys for {pairs} pairs; give at least '
          f'{2 * pairs + 2}'
        )

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    pairs = self._pairs(beyond)
    held = [*zip(draw.sample(self._keys, pairs), draw.sample(self._values, pairs))]
    told = [map(self._word, pair) for pair in held]
    words = [(f' {word}', False) for pair in told for word in (('='.join(pair),) if self.joined else pair)]
    places = self._places(beyond)
    after = [None] * places
    # The first of as many exponential clocks of these rates: drawing without putting back (Efraimidis &
    # Spirakis 2006).
    rings = {g: -math.log(1 - draw.random()) * (g + 1) ** (1 - self.power) for g in range(places)}
    for (key, value), g in zip(held, sorted(rings, key=rings.get)):
      after[g] = (f' {self._word(key)}', False), (f' {self._word(value)}', True)
    for query in after:
      words += query or [(f' {self._filler(draw)}', False) for _ in range(2)]
    return task.written([(FILLER, False), *words])

  @property
  def _symbols(self) -> int:
    """Of a pair."""
    return 1 if self.joined else 2

  def _places(self, beyond: bool) -> int:
    """Where a query could stand."""
    return (self.most(beyond) - self._symbols * self._pairs(beyond)) // 2

  def _pairs(self, beyond: bool) -> int:
    return self.more if beyond and self.more is not None else self.pairs

  @property
  def _keys(self) -> range:
    return range(1, self.vocabulary // 2)

  @property
  def _values(self) -> range:
    return range(self.vocabulary // 2, self.vocabulary)

  def _word(self, symbol: int) -> str:
    """k1, k2, …, v1, v2, …; the filler for 0."""
    if not symbol:
      return FILLER
    return f'k{symbol}' if symbol in self._keys else f'v{symbol - self._values.start + 1}'

  def _filler(self, draw: random.Random) -> str:
    return self._word(draw.randrange(self.vocabulary) if self.noise else 0)
