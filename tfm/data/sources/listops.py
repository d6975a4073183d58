"""ListOps."""

import dataclasses
import random
import statistics

from tfm.data import task


OPERATION = 0.25  # of arguments, as long as they may be operations
LEAST = 20  # symbols

OPERATORS = {
  '[MIN': min,
  '[MAX': max,
  '[MED': lambda values: int(statistics.median(values)),
  '[SM': lambda values: sum(values) % 10,
}


@dataclasses.dataclass(frozen=True)
class Listops(task.Task):
  """[MAX 4 [MIN 2 3 ] 1 [MED 1 5 8 9 ] ] is 6: nested operations on digits, whose value is the label (Nangia
  & Bowman 2018; Tay et al. 2020, Long Range Arena, §2.2.1, and its published generator, whose settings are
  the defaults here, but that training has no end, where the arena has 96,000).

  An operation has 2 … `arguments` arguments, all numbers alike often, each with probability 0.25 an operation
  itself. The median is rounded down, the sum is modulo 10. Expressions are drawn until one has more than
  `least` and fewer than `most` symbols. The arena's own files put parentheses around all pairs, which its
  models do not read; here there are none. With tokenizer='words' an operator with its bracket is a symbol,
  and so is a closing bracket; the first word has no space before it, and is a token of its own.

  Expressions of so many symbols that two alike never come up: splits need not be told apart by hashes.

  Attributes:
    depth: operations within each other are fewer.
    arguments: of an operation, at most.
    least, most: symbols of an expression, both excluded.
  """

  fields = ('text', 'label')
  apart = False
  classes = tuple(map(str, range(10)))

  depth: int = 10
  arguments: int = 10
  least: int = 500
  most: int = 2000
  _: dataclasses.KW_ONLY
  held_out: int = 2000

  def __post_init__(self):
    super().__post_init__()
    if self.depth < 2:
      raise ValueError(f'depth={self.depth} has digits alone; give at least 2')
    if self.arguments < 2:
      raise ValueError(f'arguments={self.arguments} must be at least 2')
    if self.least < LEAST:
      raise ValueError(
        f'least={self.least} lets the same short expressions into training and test; give at least {LEAST}'
      )
    if self.most < self.least + 2:
      raise ValueError(
        f'most={self.most} leaves no length beyond least={self.least}; give at least {self.least + 2}'
      )

  def example(self, draw: random.Random, beyond: bool) -> tuple[str, str]:
    for _ in range(task.TRIES):
      symbols = []
      value = self._expression(draw, 1, symbols)
      if self.least < len(symbols) < self.most:
        return ' '.join(symbols), str(value)
    raise ValueError(
      f'{self.spec} has hardly an expression of more than least={self.least} symbols and fewer than most='
      f'{self.most}; give a greater depth or more arguments, or other bounds'
    )

  def _expression(self, draw: random.Random, depth: int, symbols: list[str]) -> int:
    """The value of an expression that is written behind the symbols."""
    if len(symbols) >= self.most:
      return 0  # it is too long already, and will be drawn anew
    if depth >= self.depth or draw.random() > OPERATION:
      value = draw.randrange(10)
      symbols.append(str(value))
      return value
    operator = draw.choice([*OPERATORS])
    symbols.append(operator)
    values = [self._expression(draw, depth + 1, symbols) for _ in range(draw.randint(2, self.arguments))]
    symbols.append(']')
    return OPERATORS[operator](values)
