"""A study: one question, answered by runs whose configs differ in one to three fields."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from tfm.config.library import EXPERIMENTS, find_file, load_function
from tfm.config.overlay import complete, locate
from tfm.errors import require, suggest
from tfm.studies.cost_matching import QUANTITIES


Changes = Mapping[str, Any]

STEPS, RATE = 'training.steps', 'optimizer.learning_rate'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
  """What a file of experiments/ defines.

  Attributes:
    question: in one sentence; literature: what is published about it, with references.
    config: the config that all arms change.
    arms: name → {dotted path of a config field: value}.
    base: the arm that the others are compared with and matched to.
    against: arm → the arm that it is compared with instead of `base`, for studies with several groups; an
      arm that is compared with itself is the base of its group.
    seeds: number of runs of each arm, with seeds 0, 1, ….
    match: the quantity in which every arm is matched to the base within 2 %: 'parameters', 'flops', 'tokens'
      (both of the whole training) or 'time'; None: no matching.
    matched_field: the config field that matching changes: a width, or 'training.steps'.
    multiple: matching sets it to a multiple of this number.
    metric: the metric that ranks the arms; higher_is_better: its direction.
    measures: what to measure on the trained runs beyond validation, as specs of tfm/studies/measures.
    learning_rates: candidates from which each arm's learning rate is selected, with one run each at a seed
      that is not reported; (): the config's rate.

  Raises:
    ValueError: for an inconsistent study, naming the field.
  """

  question: str
  config: ConfigDict
  arms: Mapping[str, Changes]
  base: str
  against: Mapping[str, str] = dataclasses.field(default_factory=dict)
  seeds: int = 3
  match: str | None = None
  matched_field: str = 'model.feed_forward_width'
  multiple: int = 8
  metric: str = 'loss'
  higher_is_better: bool = False
  measures: tuple[str, ...] = ()
  learning_rates: tuple[float, ...] = ()
  literature: str = ''

  def __post_init__(self):
    self._check_comparisons()
    self._check_matching()
    self._check_arms()
    if self.seeds < 1:
      raise ValueError(f'seeds={self.seeds} must be at least 1')
    if len({f'{rate:g}' for rate in self.learning_rates}) < len(self.learning_rates):
      raise ValueError(
        f'learning_rates={self.learning_rates} has a duplicate (compared to six digits); remove it'
      )

  def _check_comparisons(self):
    if self.base not in self.arms:
      raise ValueError(f'base={self.base!r} is not an arm; {suggest(self.base, self.arms)}')
    for name in (*self.against, *self.against.values()):
      if name not in self.arms:
        raise ValueError(f'against: {name!r} is not an arm; {suggest(name, self.arms)}')
    for name, reference in self.against.items():
      other = self.against.get(reference, self.base)
      if other != reference:
        raise ValueError(
          f'against[{name!r}]={reference!r} is itself compared with {other!r}; use an arm that is compared '
          'with itself'
        )

  def _check_matching(self):
    if self.match not in (None, *QUANTITIES):
      raise ValueError(f'match={self.match!r} is unknown; {suggest(str(self.match), QUANTITIES)}')
    if self.match in ('tokens', 'time') and self.matched_field != STEPS:
      raise ValueError(
        f'match={self.match!r} depends on the number of steps, not on matched_field={self.matched_field!r}; '
        f'use {STEPS!r}'
      )
    if self.match == 'parameters' and self.matched_field == STEPS:
      raise ValueError(
        f'match={self.match!r} does not depend on matched_field={STEPS!r}; use a width of the model'
      )
    if self.match:
      try:
        section, field = locate(complete(self.config), self.matched_field, self.match)
      except ValueError as error:
        raise ValueError(f'matched_field={self.matched_field!r} is not a field: {error}') from error
      if section.get_type(field) is not int:
        raise ValueError(f'matched_field={self.matched_field!r} is not a size; use a width, or {STEPS!r}')

  def _check_arms(self):
    names = {}
    for name, changes in self.arms.items():
      if ',' in name:
        raise ValueError(f'the arm {name!r} contains a comma, which separates names in --arms; remove it')
      if self.match and self.matched_field in changes:
        raise ValueError(
          f'the arm {name!r} sets {self.matched_field}, which match={self.match!r} changes as '
          f'matched_field={self.matched_field!r}; remove one of them'
        )
      if self.learning_rates and RATE in changes:
        raise ValueError(
          f'the arm {name!r} sets {RATE}, which is selected from learning_rates={self.learning_rates}; '
          'remove one of them'
        )
      folder = folder_name(name)
      if (other := names.setdefault(folder, name)) != name:
        raise ValueError(
          f'the arms {other!r} and {name!r} have the same folder {folder!r}; use names that differ in '
          'letters, digits or =+-.'
        )


def folder_name(name: str) -> str:
  """The folder name of an arm; the arm's name may contain any characters."""
  return re.sub(r'[^\w.=+-]+', '_', name).strip('_') or '_'


def product(*axes: Mapping[str, Changes]) -> dict[str, Changes]:
  """The arms of all combinations, named 'a + b': product({'rope': …, 'alibi': …}, {'pre': …, 'post': …}).

  Raises:
    ValueError: if two axes change the same field.
  """
  arms = {}
  for combination in itertools.product(*(axis.items() for axis in axes)):
    names, changes = zip(*combination)
    paths = [path for change in changes for path in change]
    if duplicates := sorted({path for path in paths if paths.count(path) > 1}):
      raise ValueError(
        f'two axes of product() change {duplicates[0]}, in {" + ".join(names)}; change it in one of them'
      )
    arms[' + '.join(names)] = {path: value for change in changes for path, value in change.items()}
  return arms


def compare_within(arms: Iterable[str], base: str) -> dict[str, str]:
  """`against` for a `product`: compares each arm with the one that has `base` on the first axis and the same
  others.

  For base 'rope', 'alibi + pre' is compared with 'rope + pre'.
  """
  return {name: ' + '.join([base, *name.split(' + ')[1:]]) for name in arms}


def load_study(file: str) -> Study:
  """The study of `FILE` or `FILE:args`, a Python file with `get_study(arg)`: a path, or a name that
  `tfm configs` lists.

  Raises:
    ValueError: if the file is missing, or defines no study.
  """
  name, _, arg = file.partition(':')
  path = find_file(name, EXPERIMENTS)
  study = load_function(path, 'get_study')(arg)
  require(isinstance(study, Study), f'{path}: get_study(arg) returns a {type(study).__name__}, not a Study')
  return study
