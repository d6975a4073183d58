"""ListOps."""

import dataclasses
import random
import statistics

from tfm.data import synthetic_task
from tfm.spec import Size


OPERATION_PROBABILITY = 0.25  # of an argument below the maximum depth
LEAST = 20  # symbols of an expression

OPERATORS = {
  '[MIN': min,
  '[MAX': max,
  '[MED': lambda values: int(statistics.median(values)),
  '[SM': lambda values: sum(values) % 10,
}


@dataclasses.dataclass(frozen=True)
class Listops(synthetic_task.Task):
  """[MAX 4 [MIN 2 3 ] 1 [MED 1 5 8 9 ] ] has the label 6: nested operations on digits (Nangia & Bowman 2018;
  Tay et al. 2020, Long Range Arena, §2.2.1, and its published generator, whose settings are the defaults; but
  training is infinite, where the arena has 96,000 examples).

  An operation has 2 … `arguments` arguments, uniformly distributed, each with probability 0.25 an operation
  itself. The median is rounded down, the sum is modulo 10. Expressions are drawn until one has more than
  `least` and fewer than `most` symbols. The arena's own files have parentheses around all pairs, which its
  models do not read; they are omitted. With tokenizer='words' an operator with its bracket is one symbol, and
  so is a closing bracket; the first word has no space before it, so it is a different token.

  Expressions have so many symbols that two are never equal, so splits need not be separated by hashes.

  Attributes:
    depth: the nesting depth is less than this.
    arguments: the maximum number of arguments of an operation.
    least, most: bounds of the number of symbols of an expression, both excluded.
  """

  fields = ('text', 'label')
  assigns_by_hash = False
  classes = tuple(map(str, range(10)))

  depth: Size = 10
  arguments: Size = 10
  least: Size = 500
  most: Size = 2000
  _: dataclasses.KW_ONLY
  held_out: int = 2000

  def __post_init__(self):
    if self.depth < 2:
      raise ValueError(f'depth={self.depth} has only digits; use at least 2')
    if self.arguments < 2:
      raise ValueError(f'arguments={self.arguments} must be at least 2')
    if self.least < LEAST:
      raise ValueError(
        f'least={self.least} puts the same short expressions into training and test; use at least {LEAST}'
      )
    if self.most < self.least + 2:
      raise ValueError(f'most={self.most} must be at least {self.least + 2}, beyond least={self.least}')

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    for _ in range(synthetic_task.MAX_DRAWS):
      symbols = []
      value = self._expression(draw, 1, symbols)
      if self.least < len(symbols) < self.most:
        return ' '.join(symbols), str(value)
    raise ValueError(
      f'{self.spec} has too few expressions of more than least={self.least} symbols and fewer than most='
      f'{self.most}; use a greater depth, more arguments, or other bounds'
    )

  def _expression(self, draw: random.Random, depth: int, symbols: list[str]) -> int:
    """Appends the symbols of a random expression; returns its value."""
    if len(symbols) >= self.most:
      return 0  # already too long: another one will be drawn
    if depth >= self.depth or draw.random() > OPERATION_PROBABILITY:
      value = draw.randrange(10)
      symbols.append(str(value))
      return value
    operator = draw.choice([*OPERATORS])
    symbols.append(operator)
    values = [self._expression(draw, depth + 1, symbols) for _ in range(draw.randint(2, self.arguments))]
    symbols.append(']')
    return OPERATORS[operator](values)
