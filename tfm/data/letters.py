"""Tasks of the kind `letters=answer`."""

import abc
import dataclasses
import random
import string

from tfm.data import task


@dataclasses.dataclass(frozen=True)
class Letters(task.Lengths):
  """`x=f(x)`, x being letters that are drawn alike often; f(x) and the end of the text are the answer.

  Attributes:
    length, longer: of x in training and in the test, as `task.Lengths` has them.
    symbols: different letters, lower case before upper case.
  """

  symbols: int = 26

  def __post_init__(self):
    super().__post_init__()
    if not 2 <= self.symbols <= len(string.ascii_letters):
      raise ValueError(f'symbols={self.symbols} must lie in 2 … {len(string.ascii_letters)}')

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    x = ''.join(draw.choices(string.ascii_letters[: self.symbols], k=self.size(draw, beyond)))
    return task.written([(f'{x}=', False), (self.answer(x), True)], end=True)

  @abc.abstractmethod
  def answer(self, x: str) -> str:
    """f(x)."""
