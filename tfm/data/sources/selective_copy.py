"""Selective copying."""

import dataclasses
import random
import string

from tfm.data import synthetic_task
from tfm.spec import Size


NOISE = '.'


@dataclasses.dataclass(frozen=True)
class SelectiveCopy(synthetic_task.LengthTask):
  """..b.a...c.=bac: letters at random places in noise; the answer is the letters in order (Jing et al. 2019;
  Gu & Dao 2023, §4.1.1, with 16 symbols including the noise, and 16 letters in 4096 places).

  Attributes:
    length, longer: the number of letters and noise symbols in training and in the test split; all texts of
      a split have the same length; longer=None: the test split is as training.
    tokens: the number of letters in a text.
    symbols: the number of different letters, plus the noise.
  """

  length: Size = 4096
  longer: Size | None = None
  tokens: Size = 16
  symbols: Size = 16

  def __post_init__(self):
    super().__post_init__()
    if not 1 <= self.tokens <= self.length:
      raise ValueError(f'tokens={self.tokens} must lie in 1 … length={self.length}')
    if not 3 <= self.symbols <= len(string.ascii_letters) + 1:
      raise ValueError(f'symbols={self.symbols} must lie in 3 … {len(string.ascii_letters) + 1}')

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    text = [NOISE] * self.max_length(is_test)
    letters = ''.join(draw.choices(string.ascii_letters[: self.symbols - 1], k=self.tokens))
    for place, letter in zip(sorted(draw.sample(range(len(text)), self.tokens)), letters):
      text[place] = letter
    return synthetic_task.format_example([(f'{"".join(text)}=', False), (letters, True)])
