"""A study: one question, asked of runs that differ in one to three fields."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from tfm.errors import suggest
from tfm.spec import load_function
from tfm.studies.matching import QUANTITIES


Changes = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
  """What a file of experiments/ states.

  Attributes:
    question: in a sentence; literature: what is said of it so far, with references.
    config: of the base, of which every arm is a change.
    arms: name → the fields that it changes, by their dotted paths, and their values.
    base: the arm that the others are compared with, and whose quantity is matched.
    against: arm → another arm that it is compared with instead, as in a study at several widths; one that is compared
      with itself is a base, too.
    seeds: how many runs of each arm, seeds 0, 1, ….
    match: what all arms have as much of as the base, within 2 %: 'parameters', 'flops', 'tokens' (both of the whole
      training), 'time'; None: only what the arms leave as it is.
    free: the field that may change for that: a width, or 'training.steps'.
    multiple: it is set to multiples of this.
    metric: that decides; higher: whether more of it is better.
    measures: what is asked of the trained runs beyond their validation, as specs of tfm/studies/measures.
    rates: learning rates to choose from for each arm, by a run of a seed that is not reported; (): the config's.

  Raises:
    ValueError: for what cannot be asked, naming the field.
  """

  question: str
  config: ConfigDict
  arms: Mapping[str, Changes]
  base: str
  against: Mapping[str, str] = dataclasses.field(default_factory=dict)
  seeds: int = 3
  match: str | None = None
  free: str = 'model.feed_forward_width'
  multiple: int = 8
  metric: str = 'loss'
  higher: bool = False
  measures: tuple[str, ...] = ()
  rates: tuple[float, ...] = ()
  literature: str = ''

  def __post_init__(self):
    if self.base not in self.arms:
      raise ValueError(f'base={self.base!r} is no arm; {suggest(self.base, self.arms)}')
    for name in (*self.against, *self.against.values()):
      if name not in self.arms:
        raise ValueError(f'against names {name!r}, which is no arm; {suggest(name, self.arms)}')
    for name, of in self.against.items():
      if self.against.get(of, self.base) != of:
        raise ValueError(
          f'against[{name!r}]={of!r} is itself compared with {self.against.get(of, self.base)!r}; compare '
          'with an arm that is compared with itself'
        )
    if self.seeds < 1:
      raise ValueError(f'seeds={self.seeds} must be at least 1')
    if self.match not in (None, *QUANTITIES):
      raise ValueError(f'match={self.match!r} is not known; {suggest(str(self.match), QUANTITIES)}')
    if self.match in ('tokens', 'time') and self.free != STEPS:
      raise ValueError(
        f'match={self.match!r} follows from how long an arm trains, and free={self.free!r} is something '
        f'else; {STEPS!r} would do'
      )
    if self.match == 'parameters' and self.free == STEPS:
      raise ValueError(f'match={self.match!r} does not follow from free={STEPS!r}; a width would do')
    for name, changes in self.arms.items():
      if ',' in name:
        raise ValueError(
          f'the arm {name!r} has a comma in its name, and --arms divides names by commas; leave it out'
        )
      if self.match and self.free in changes:
        raise ValueError(
          f'the arm {name!r} sets {self.free}, which is free={self.free!r} for match={self.match!r}; leave '
          'one of them out'
        )
      if self.rates and RATE in changes:
        raise ValueError(
          f'the arm {name!r} sets {RATE}, which rates={self.rates} choose for each arm; leave one of them out'
        )
    if len({f'{rate:g}' for rate in self.rates}) < len(self.rates):
      raise ValueError(f'rates={self.rates} has one twice, to six digits; leave one of them out')
    names = {}
    for name in self.arms:
      if (other := names.setdefault(folder_name(name), name)) != name:
        raise ValueError(
          f'the arms {other!r} and {name!r} would share the folder {folder_name(name)!r}; let them differ in letters, '
          'digits or =+-.'
        )


STEPS, RATE = 'training.steps', 'optimizer.learning_rate'


def folder_name(name: str) -> str:
  """What the folder of an arm is called, whose name may hold anything."""
  return re.sub(r'[^\w.=+-]+', '_', name).strip('_') or '_'


def product(*axes: Mapping[str, Changes]) -> dict[str, Changes]:
  """The arms of all combinations, named 'this + that': product({'rope': …, 'alibi': …}, {'pre': …, 'post': …}).

  Raises:
    ValueError: if two axes change one field.
  """
  made = {}
  for chosen in itertools.product(*(axis.items() for axis in axes)):
    names, changes = zip(*chosen)
    paths = [path for change in changes for path in change]
    if twice := sorted({path for path in paths if paths.count(path) > 1}):
      raise ValueError(f'two axes change {twice[0]}, in {" + ".join(names)}; let one of them do so')
    made[' + '.join(names)] = {path: value for change in changes for path, value in change.items()}
  return made


def within(arms: Iterable[str], base: str) -> dict[str, str]:
  """`against` of a `product` whose first axis is what is asked: 'alibi + pre' is compared with 'rope + pre' for 'rope'."""
  return {name: ' + '.join([base, *name.split(' + ')[1:]]) for name in arms}


def load(file: str) -> Study:
  """The study of `FILE` or `FILE:args`, a Python file with `get_study(arg)`.

  Raises:
    ValueError: if the file is missing, or defines none.
  """
  path, _, arg = file.partition(':')
  return load_function(path, 'get_study')(arg)
