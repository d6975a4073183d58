"""Copying what matters."""

import dataclasses
import random
import string

from tfm.data import task


NOISE = '.'


@dataclasses.dataclass(frozen=True)
class SelectiveCopy(task.Lengths):
  """..b.a...c.=bac: letters stand anywhere among noise, and are to be told in order (Jing et al. 2019; Gu &
  Dao 2023, §4.1.1, with 16 symbols, the noise being one of them, and 16 letters among 4096 places).

  Attributes:
    length, longer: places of letters and noise in training and in the test, all texts of a split being of
      one length; longer=None: the test is as training.
    tokens: letters in a text.
    symbols: different letters, and the noise.
  """

  length: int = 4096
  longer: int | None = None
  tokens: int = 16
  symbols: int = 16

  def __post_init__(self):
    super().__post_init__()
    if not 1 <= self.tokens <= self.length:
      raise ValueError(f'tokens={self.tokens} must lie in 1 … length={self.length}')
    if not 3 <= self.symbols <= len(string.ascii_letters) + 1:
      raise ValueError(f'symbols={self.symbols} must lie in 3 … {len(string.ascii_letters) + 1}')

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    text = [NOISE] * self.most(beyond)
    found = ''.join(draw.choices(string.ascii_letters[: self.symbols - 1], k=self.tokens))
    for place, letter in zip(sorted(draw.sample(range(len(text)), self.tokens)), found):
      text[place] = letter
    return task.written([(f'{"".join(text)}=', False), (found, True)])
