"""Tasks of the form `letters=answer`."""

import abc
import dataclasses
import random
import string

from tfm.data import synthetic_task


@dataclasses.dataclass(frozen=True)
class LetterTask(synthetic_task.LengthTask):
  """`x=f(x)`, where x are uniformly random letters; f(x) and the end of the text are the answer.

  Attributes:
    length, longer: the length of x in training and in the test split, as in `task.LengthTask`.
    symbols: the number of different letters, lower case before upper case.
  """

  symbols: int = 26

  def __post_init__(self):
    super().__post_init__()
    if not 2 <= self.symbols <= len(string.ascii_letters):
      raise ValueError(f'symbols={self.symbols} must lie in 2 … {len(string.ascii_letters)}')

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    x = ''.join(draw.choices(string.ascii_letters[: self.symbols], k=self.draw_length(draw, is_test)))
    return synthetic_task.format_example([(f'{x}=', False), (self.answer(x), True)], end=True)

  @abc.abstractmethod
  def answer(self, x: str) -> str:
    """Returns f(x)."""
