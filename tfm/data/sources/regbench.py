"""Languages of random automata, to be learnt from their strings in the context."""

import dataclasses
import random

from tfm.data import synthetic_task
from tfm.spec import Size


SEPARATOR = '|'
LEAST = 4  # states of an automaton, and symbols of its alphabet

Automaton = list[dict[str, int]]  # state → {symbol: next state}; the first is where a string begins


@dataclasses.dataclass(frozen=True)
class Regbench(synthetic_task.Task):
  """| s3 s1 s3 | s3 s5 s1 | …: strings of a random automaton, another in every text: what may follow must be
  inferred from the strings before (Akyürek et al. 2024, In-Context Language Learning, and its published
  generator).

  An automaton has 4 … `states` states and an alphabet of 4 … `symbols` of all symbols; from a state lead
  1 … `edges` edges with different symbols of it to random states, each taken with equal probability. A text
  has half of `strings` … `strings` strings of 1 … `length` symbols. All numbers are uniformly distributed.
  The answers are all symbols of all strings; as several can be right, see the measure `valid_symbols`, too.
  Words are separated by spaces, so that with tokenizer='words' each symbol is one token.

  The published automata are minimized, which changes no language, and are a few thousand; here every text has
  another.

  Attributes:
    states, symbols, edges, strings, length: the greatest numbers.
  """

  assigns_by_hash = False

  states: Size = 12
  symbols: Size = 18
  edges: Size = 4
  strings: Size = 20
  length: Size = 50

  def __post_init__(self):
    for name, least in (('states', LEAST), ('symbols', LEAST), ('edges', 1), ('strings', 2), ('length', 1)):
      if (value := getattr(self, name)) < least:
        raise ValueError(f'{name}={value} must be at least {least}')

  def sample(self, draw: random.Random) -> tuple[Automaton, list[list[str]]]:
    """Returns a random automaton and strings of it."""
    states = draw.randint(LEAST, self.states)
    alphabet = draw.sample([f's{i + 1}' for i in range(self.symbols)], draw.randint(LEAST, self.symbols))
    edges = min(self.edges, len(alphabet))
    automaton = [
      {symbol: draw.randrange(states) for symbol in draw.sample(alphabet, draw.randint(1, edges))}
      for _ in range(states)
    ]
    strings = []
    for _ in range(draw.randint(self.strings // 2, self.strings)):
      state, string = 0, []
      for _ in range(draw.randint(1, self.length)):
        string.append(draw.choice([*automaton[state]]))
        state = automaton[state][string[-1]]
      strings.append(string)
    return automaton, strings

  def document(self, split: str, index: int) -> tuple[Automaton, list[list[str]]]:
    """The automaton and the strings of a text of a split."""
    return self.sample(self.draw(split, index))

  def example(self, draw: random.Random, is_test: bool) -> tuple[str, str]:
    _, strings = self.sample(draw)
    parts = [
      part
      for i, string in enumerate(strings)
      for part in ((f' {SEPARATOR}' if i else SEPARATOR, False), *((f' {symbol}', True) for symbol in string))
    ]
    return synthetic_task.format_example(parts)
