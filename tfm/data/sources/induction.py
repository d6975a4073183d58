"""Induction: what came after this before?"""

import dataclasses
import random
import string

from tfm.data import task


PREFIX = '*'


@dataclasses.dataclass(frozen=True)
class Induction(task.Lengths):
  """dca*bcad*b: a special symbol stands somewhere among random letters and once more behind them; the answer
  is what followed it (Olsson et al. 2022; as Gu & Dao 2023, §4.1.2, have it, with 16 symbols, trained on
  256).

  Attributes:
    length, longer: symbols before the answer in training and in the test, all texts of a split being of one
      length; longer=None: the test is as training.
    symbols: different letters, beside the special one.
  """

  length: int = 256
  longer: int | None = 512
  symbols: int = 16

  def __post_init__(self):
    super().__post_init__()
    if self.length < 3:
      raise ValueError(
        f'length={self.length} has no room for a symbol twice and what follows it; give at least 3'
      )
    if not 2 <= self.symbols <= len(string.ascii_letters):
      raise ValueError(f'symbols={self.symbols} must lie in 2 … {len(string.ascii_letters)}')

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    text = draw.choices(string.ascii_letters[: self.symbols], k=self.most(beyond))
    first = draw.randrange(len(text) - 2)
    text[first] = text[-1] = PREFIX
    return task.written([(''.join(text), False), (text[first + 1], True)])
