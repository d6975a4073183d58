"""Numbers and dates in words, in two languages: translation without a file."""

import dataclasses
import datetime
import random
import zlib

from tfm.data.corpus import generate_corpus
from tfm.data.documents import INFINITE
from tfm.data.sources import protocol
from tfm.errors import importing_extra
from tfm.spec import NonNegativeInt, PositiveInt, Size


with importing_extra('translation'):
  import babel.dates
  import num2words

HELD_OUT = 1000  # pairs of validation, and of the test split
DATE_FRACTION = 0.3  # of the pairs; the others are numbers
FIRST_YEAR, LAST_YEAR = 1900, 1999  # of training; the test split has the next century


@dataclasses.dataclass(frozen=True)
class Numbers(protocol.Source):
  """Infinitely many pairs: a number or a date in two languages, generated when it is read,

    two hundred and five → zweihundertfünf        Saturday, May 1, 1971 → Samstag, 1. Mai 1971

  by num2words and Babel. Training and validation have numbers of up to `digits` digits, all lengths with
  equal probability, and dates of one century; no source is in both. The test split generalizes: numbers of
  more digits, up to `longest`, and dates of the next century. There is one correct answer, so `exact` is a
  fair metric.

  Attributes:
    src, tgt: languages, as num2words and Babel name them.
    pairs: the number of training pairs, with a twentieth as many for validation and for the test split
      each; None: infinite, with 1,000 each.
    seed: of the random pairs.
  """

  fields = ('source', 'target')

  src: str = 'en'
  tgt: str = 'de'
  pairs: PositiveInt | None = None
  digits: Size = 5
  longest: Size = 7
  seed: NonNegativeInt = 0

  def __post_init__(self):
    if self.pairs is not None and self.pairs < 20:
      raise ValueError(f'pairs={self.pairs} must be at least 20, or None for infinitely many')
    if not 1 <= self.digits < self.longest:
      raise ValueError(
        f'digits={self.digits} and longest={self.longest} leave no longer numbers for the test split; use '
        'digits of at least 1 and a greater longest'
      )
    for language in (self.src, self.tgt):
      if language not in num2words.CONVERTER_CLASSES or not babel.localedata.exists(language):
        both = [name for name in num2words.CONVERTER_CLASSES if babel.localedata.exists(name)]
        raise ValueError(
          f'{language!r} is not a language of num2words and Babel; known: {", ".join(sorted(both))}'
        )

  @property
  def is_infinite(self):
    return self.pairs is None

  def open_corpus(self, store):
    held_out = HELD_OUT if self.is_infinite else self.pairs // 20
    sizes = dict(train=INFINITE if self.is_infinite else self.pairs, validation=held_out, test=held_out)
    return generate_corpus(self.spec, self._pair, sizes, self.fields)

  def _pair(self, split: str, number: int) -> tuple[str, str]:
    draw = random.Random(f'{self.seed} {split} {number}')
    while True:
      value = (
        self._date(draw, split == 'test')
        if draw.random() < DATE_FRACTION
        else self._number(draw, split == 'test')
      )
      # Every twentieth value belongs to validation, independent of the number of pairs.
      if split == 'test' or (split == 'validation') == (zlib.crc32(str(value).encode()) % 20 == 0):
        return spell_out(value, self.src), spell_out(value, self.tgt)

  def _number(self, draw: random.Random, is_test: bool) -> int:
    digits = draw.randint(self.digits + 1, self.longest) if is_test else draw.randint(1, self.digits)
    return draw.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)

  def _date(self, draw: random.Random, is_test: bool) -> datetime.date:
    year = draw.randint(FIRST_YEAR, LAST_YEAR) + 100 * is_test
    return datetime.date(year, 1, 1) + datetime.timedelta(days=draw.randrange(365))


def spell_out(value: int | datetime.date, language: str) -> str:
  """Returns a number in words, or a date in full."""
  if isinstance(value, int):
    return num2words.num2words(value, lang=language)
  return babel.dates.format_date(value, 'full', locale=language)
