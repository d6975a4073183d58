"""Numbers and dates, spelt out in two languages: translation without a file."""

import dataclasses
import datetime
import pathlib
import random
import zlib

import babel.dates
import num2words

from tfm.data import corpus
from tfm.data.sources import protocol


HELD_OUT = 1000  # pairs of validation, and of the test
DATES = 0.3  # of the pairs; the others are numbers
FIRST_YEAR, LAST_YEAR = 1900, 1999  # of training; the century after it is for the test


@dataclasses.dataclass(frozen=True)
class Numbers(protocol.Source):
  """Pairs without end: a number or a date in one language and in another, drawn when they are read,

    two hundred and five → zweihundertfünf        Saturday, May 1, 1971 → Samstag, 1. Mai 1971

  by num2words and Babel. Training and validation have numbers of up to `digits` digits, all lengths alike
  often, and dates of one century, no source standing in both. The test asks for more: numbers of more
  digits, up to `longest`, and dates of the next century. There is one right answer, so that `exact` is a
  fair metric.

  Attributes:
    src, tgt: languages, as num2words and Babel call them.
    pairs: of training, where they are to have an end; a twentieth as many are for validation and for the
      test each, otherwise 1,000.
    seed: of the draw.
  """

  fields = ('source', 'target')

  src: str = 'en'
  tgt: str = 'de'
  pairs: int | None = None
  digits: int = 5
  longest: int = 7
  seed: int = 0

  def __post_init__(self):
    if self.pairs is not None and self.pairs < 20:
      raise ValueError(f'pairs={self.pairs} are too few; give at least 20, or none for pairs without end')
    if not 1 <= self.digits < self.longest:
      raise ValueError(
        f'digits={self.digits} and longest={self.longest} leave no longer numbers to the test; give '
        'digits of at least 1 and a longest beyond them'
      )
    for language in (self.src, self.tgt):
      if language not in num2words.CONVERTER_CLASSES or not babel.localedata.exists(language):
        both = [name for name in num2words.CONVERTER_CLASSES if babel.localedata.exists(name)]
        raise ValueError(
          f'{language!r} is no language of num2words and Babel; known: {", ".join(sorted(both))}'
        )

  @property
  def is_infinite(self):
    return self.pairs is None

  def prepare(self, cache_dir: pathlib.Path) -> corpus.Corpus:
    held_out = HELD_OUT if self.is_infinite else self.pairs // 20
    sizes = dict(
      train=corpus.INFINITE if self.is_infinite else self.pairs, validation=held_out, test=held_out
    )
    return corpus.drawn(self.spec, self._pair, sizes, self.fields)

  def _pair(self, split: str, number: int) -> tuple[str, str]:
    draw = random.Random(f'{self.seed} {split} {number}')
    while True:
      value = (
        self._date(draw, split == 'test') if draw.random() < DATES else self._number(draw, split == 'test')
      )
      # Every twentieth value is validation's, however many pairs there are.
      if split == 'test' or (split == 'validation') == (zlib.crc32(str(value).encode()) % 20 == 0):
        return spelt(value, self.src), spelt(value, self.tgt)

  def _number(self, draw: random.Random, beyond: bool) -> int:
    digits = draw.randint(self.digits + 1, self.longest) if beyond else draw.randint(1, self.digits)
    return draw.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)

  def _date(self, draw: random.Random, beyond: bool) -> datetime.date:
    year = draw.randint(FIRST_YEAR, LAST_YEAR) + 100 * beyond
    return datetime.date(year, 1, 1) + datetime.timedelta(days=draw.randrange(365))


def spelt(value: int | datetime.date, language: str) -> str:
  """A number in words, or a date in full."""
  if isinstance(value, int):
    return num2words.num2words(value, lang=language)
  return babel.dates.format_date(value, 'full', locale=language)
