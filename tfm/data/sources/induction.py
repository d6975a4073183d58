"""Induction: which symbol followed this one before?"""

import dataclasses
import random
import string

from tfm.data import synthetic_task
from tfm.spec import Size


PREFIX = '*'


@dataclasses.dataclass(frozen=True)
class Induction(synthetic_task.LengthTask):
  """dca*bcad*b: a special symbol is at a random place among random letters, and again at the end; the answer
  is the symbol that followed it (Olsson et al. 2022; with 16 symbols and length 256 in Gu & Dao 2023,
  §4.1.2).

  Attributes:
    length, longer: the number of symbols before the answer in training and in the test split; all texts of
      a split have the same length; longer=None: the test split is as training.
    symbols: the number of different letters, without the special symbol.
  """

  length: Size = 256
  longer: Size | None = 512
  symbols: Size = 16

  def __post_init__(self):
    super().__post_init__()
    if self.length < 3:
      raise ValueError(
        f'length={self.length} has no room for a symbol twice and the one after it; use at least 3'
      )
    if not 2 <= self.symbols <= len(string.ascii_letters):
      raise ValueError(f'symbols={self.symbols} must lie in 2 … {len(string.ascii_letters)}')

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    text = draw.choices(string.ascii_letters[: self.symbols], k=self.max_length(is_test))
    first = draw.randrange(len(text) - 2)
    text[first] = text[-1] = PREFIX
    return synthetic_task.format_example([(''.join(text), False), (text[first + 1], True)])
