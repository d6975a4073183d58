"""A study: one question, answered by runs whose configs differ in one to three fields."""

import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Interval
from ml_collections import ConfigDict

import tfm.studies.measures
from tfm.config.library import EXPERIMENTS, find_file, load_function
from tfm.config.overlay import assign, complete, locate
from tfm.config.schema import validate_fields
from tfm.errors import prefixing, require, suggest
from tfm.spec import PositiveFloat, Size, require_variants, shorten, unsuitable_reason
from tfm.studies.cost_matching import QUANTITIES


Changes = Mapping[str, Any]

JOIN = ' + '  # between the parts of an arm's name
MAX_SEEDS = 10_000  # far more than decide anything
MAX_RATES_BEYOND = 10  # a factor of a thousand from rates that double
# Metrics that are better if lower, also of a split or of one source of a mixture: test_loss, loss/law.
LOSS = re.compile(r'(\w+_)?(loss|perplexity|bits_per_byte)(/.*)?')
STEPS, RATE, WIDTH = 'training.steps', 'optimizer.learning_rate', 'model.feed_forward_width'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
  """What a file of experiments/ defines.

  Attributes:
    question: in one sentence; literature: what is published about it, with references.
    config: the config that all arms change.
    arms: name → {dotted path of a config field: value}.
    base: the arm that the others are compared with and matched to; with `scales` or `tasks` an arm is matched
      to the one that it is compared with.
    against: arm → the arm that it is compared with instead of `base`, for studies with several groups; an
      arm that is compared with itself is the base of its group.
    seeds: number of runs of each arm, with seeds 0, 1, …, whatever the seed of `config`.
    match: the quantity in which every arm is matched to the base within 2 %: 'parameters', 'flops', 'tokens'
      (both of the whole training) or 'time'; None: no matching.
    matched_field: the config field that matching changes: a width (None: that of the feed-forward layer), or
      'training.steps'.
    multiple: matching sets it to a multiple of this number.
    metric: the metric that ranks the arms; higher_is_better: its direction.
    equal_within: a difference of the metric that does not matter: arms are shown to be the same if the
      interval of their difference lies within it; None: no test of equality.
    solved_at: the value of the metric from which on a run has solved the task, where outcomes are all or
      nothing: arms are compared in the share of their seeds that do; None: in the metric itself.
    measures: what to measure on the trained runs beyond validation, as specs of tfm/studies/measures.
    learning_rates: each arm trains at its best rate between these, found with runs at seeds that are not
      reported; (): all arms train at the rate of their config. Rates whose runs reach the goal that
      `training.stop_when` has for the metric are compared by the steps until then.
    rates_beyond: how many further rates an arm may try whose best is at an end of the `learning_rates`: each
      is as far beyond that end as the end is from its neighbour, by its logarithm.
    runs_per_rate: how many of them at each rate, which counts by their mean. One run may do well by luck at a
      rate near which arms collapse; a rate at which any run diverges is not chosen.
    scales: the names on the last axis of `product`: sizes at which every arm is trained, three or more; the
      report fits the curve of loss against compute of each; (): no curves.
    tasks: the names on the last axis of `product`, two or more tasks of a suite; the report aggregates the
      metric over them; (): no aggregates.
    published: arm → (value of the metric, its source), where a paper states one; the report shows it beside.
    rungs: parts of the steps, such as (0.25, 0.5), after each of which half of the rates are dropped
      (successive halving); (): all rates train in full.

  Raises:
    ValueError: for an inconsistent study, naming the field.
  """

  question: str
  config: ConfigDict | Mapping[str, Any]
  arms: Mapping[str, Changes]
  base: str
  against: Mapping[str, str] = dataclasses.field(default_factory=dict)
  seeds: Annotated[int, Interval(ge=1, le=MAX_SEEDS)] = 3
  match: str | None = None
  matched_field: str | None = None
  multiple: Size = 8
  metric: str = 'loss'
  higher_is_better: bool = False
  equal_within: PositiveFloat | None = None
  solved_at: float | None = None
  measures: tuple[str, ...] = ()
  learning_rates: tuple[PositiveFloat, ...] = ()
  rates_beyond: Annotated[int, Interval(ge=0, le=MAX_RATES_BEYOND)] = 0
  runs_per_rate: Annotated[int, Interval(ge=1, le=MAX_SEEDS)] = 1
  rungs: tuple[Annotated[float, Interval(gt=0, lt=1)], ...] = ()
  scales: tuple[str, ...] = ()
  tasks: tuple[str, ...] = ()
  literature: str = ''
  published: Mapping[str, tuple[float, str]] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      require(not (reason := unsuitable_reason(value, field.type)), f'{field.name}={shorten(value)} {reason}')
    for name in ('config', 'arms', 'against', 'published'):
      require_mapping(getattr(self, name), name)
    for name, changes in self.arms.items():
      require(isinstance(name, str), f'the name {shorten(name)} of an arm must be of type str')
      require_mapping(changes, f'arms[{name!r}]')
      for path in changes:
        require(
          isinstance(path, str), f'arms[{name!r}] changes {shorten(path)}; use the path of a config field'
        )
    if self.match and self.matched_field is None:
      object.__setattr__(self, 'matched_field', WIDTH)
    self._check_comparisons()
    self._check_matching()
    self._check_arms()
    self._check_rates()
    self._check_scales()
    self._check_tasks()
    check_direction(self.metric, self.higher_is_better)
    require(
      self.equal_within is None or self.solved_at is None,
      f'equal_within={self.equal_within} is a difference of the metric, and solved_at={self.solved_at} '
      'compares shares of seeds; remove one of them',
    )

  @property
  def selection_runs(self) -> float:
    """The cost of selecting an arm's learning rate, in trainings of full length, without `rates_beyond`."""
    count, cost = len(self.learning_rates), 0.0
    for fraction in self.rungs:
      cost += fraction * count
      count = count_survivors(count)
    return self.runs_per_rate * (cost + count)

  def _check_comparisons(self):
    if self.base not in self.arms:
      raise ValueError(f'base={self.base!r} is not an arm; {suggest(self.base, self.arms)}')
    named = dict(against=(*self.against, *self.against.values()), published=self.published)
    for field, name in ((field, name) for field, names in named.items() for name in names):
      if name not in self.arms:
        raise ValueError(f'{field}: {name!r} is not an arm; {suggest(str(name), self.arms)}')
    for name, pair in self.published.items():
      is_sourced = not unsuitable_reason(pair, tuple[float, str]) and pair[1]
      require(is_sourced, f'published[{name!r}]={shorten(pair)} must be a number and its source: (0.5, "…")')
    for name, reference in self.against.items():
      other = self.against.get(reference, self.base)
      if other != reference:
        raise ValueError(
          f'against[{name!r}]={reference!r} is itself compared with {other!r}; use an arm that is compared '
          'with itself'
        )

  def _check_matching(self):
    if self.match not in (None, *QUANTITIES):
      raise ValueError(f'match={self.match!r} is unknown; {suggest(self.match, QUANTITIES)}')
    if not self.match and self.matched_field is not None:
      raise ValueError(
        f'matched_field={self.matched_field!r} has no effect without match=; use {" or ".join(QUANTITIES)}'
      )
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
        section, field = locate(complete(self.config), self.matched_field)
      except ValueError as error:
        raise ValueError(f'matched_field={self.matched_field!r}: {error}') from error
      if section.get_type(field) is not int:
        raise ValueError(f'matched_field={self.matched_field!r} is not a size; use a width, or {STEPS!r}')

  def _check_arms(self):
    names = {}
    for name, changes in self.arms.items():
      if ',' in name:
        raise ValueError(f'the arm {name!r} contains a comma, which separates names in --arms; remove it')
      if 'seed' in changes:
        raise ValueError(
          f'the arm {name!r} sets seed={changes["seed"]!r}, and every arm trains with each seed below '
          f'seeds={self.seeds}; remove it, and set seeds= to the number of runs'
        )
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
      if folder in ('.', '..'):
        raise ValueError(
          f'the arm {name!r} has no folder of its own in arms/; use a name with letters or digits'
        )
      if (other := names.setdefault(folder, name)) != name:
        raise ValueError(
          f'the arms {other!r} and {name!r} have the same folder {folder!r}; use names that differ in '
          'letters, digits or =+-.'
        )

  def _check_rates(self):
    if len({f'{rate:g}' for rate in self.learning_rates}) < len(self.learning_rates):
      raise ValueError(
        f'learning_rates={self.learning_rates} has a duplicate (compared to six digits); remove it'
      )
    require(
      self.runs_per_rate == 1 or self.learning_rates,
      f'runs_per_rate={self.runs_per_rate} are to choose a learning rate; set learning_rates, or remove it',
    )
    require(
      self.rates_beyond == 0 or len(self.learning_rates) > 1,
      f'rates_beyond={self.rates_beyond} continue the learning_rates={self.learning_rates}; use two or more',
    )
    if self.rungs and len(self.learning_rates) < 4:
      raise ValueError(
        f'rungs={self.rungs} keep three rates, and there are {len(self.learning_rates)} learning_rates; use '
        'at least four, or no rungs'
      )
    if any(later <= earlier for earlier, later in itertools.pairwise(self.rungs)):
      raise ValueError(f'rungs={self.rungs} must ascend')

  def _check_scales(self):
    if not self.scales:
      return
    require(
      len(self.scales) > 2,
      f'scales={self.scales} are too few to fit a curve with an irreducible loss; use at least three',
    )
    require(
      not self.higher_is_better and self.solved_at is None,
      f'scales={self.scales} fit curves of a loss, and not of shares or of a metric that is better if '
      'higher; remove them',
    )
    self._check_last_axis('scales')

  def _check_tasks(self):
    if not self.tasks:
      return
    require(not self.scales, f'tasks={self.tasks} and scales={self.scales} are one axis; remove one of them')
    require(len(self.tasks) > 1, f'tasks={self.tasks} are too few to aggregate; use at least two')
    require(
      self.solved_at is None,
      f'tasks={self.tasks} aggregate a metric and solved_at={self.solved_at} counts runs; remove one of them',
    )
    self._check_last_axis('tasks')

  def _check_last_axis(self, field: str):
    """Checks that the arms are those of a product whose last axis has the names of a field."""
    names = getattr(self, field)
    require(len({*names}) == len(names), f'{field}={names} has a duplicate; remove it')
    hint = f'use arms=product(ARMS, {field.upper()}) and {field}=tuple({field.upper()})'
    split = {name: split_last(name) for name in self.arms}
    for name, (_, last) in split.items():
      require(last in names, f'{field}={names}: the arm {name!r} is at none of them; {hint}')
    for series, _ in split.values():
      for last in names:
        name = f'{series}{JOIN}{last}'
        require(name in self.arms, f'{field}={names}: the arm {name!r} is missing; {hint}')
    for name, (_, last) in split.items():
      other = split_last(self.against.get(name, self.base))[1]
      require(
        last == other,
        f'the arm {name!r} is compared with one at another of {field}, {other!r}; '
        'use against=compare_within(…)',
      )

  def matched_to(self, name: str) -> str:
    """The arm whose quantity an arm is matched to."""
    return self.against.get(name, self.base) if self.scales or self.tasks else self.base


def require_mapping(value: Any, name: str) -> None:
  """Raises ValueError unless the value of a field is a dict or a ConfigDict."""
  require(isinstance(value, (Mapping, ConfigDict)), f'{name}={shorten(value)} must be of type dict')


def check_direction(metric: str, higher_is_better: bool) -> None:
  """Raises ValueError for a loss that is to be better if higher."""
  require(
    not (higher_is_better and LOSS.fullmatch(metric)),
    f'higher_is_better=True, and metric={metric!r} is better if lower; remove higher_is_better, or use '
    'another metric',
  )


def split_last(name: str) -> tuple[str, str]:
  """'rope + 64' → ('rope', '64'): an arm's name without its value on the last axis of `product`, and that."""
  series, _, last = name.rpartition(JOIN)
  return series, last


def count_survivors(rates: int) -> int:
  """How many of the rates of a rung enter the next: half, and three at least, to interpolate the best."""
  return min(rates, max(3, math.ceil(rates / 2)))


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
        f'two axes of product() change {duplicates[0]}, in {JOIN.join(names)}; change it in one of them'
      )
    arms[JOIN.join(names)] = {path: value for change in changes for path, value in change.items()}
  return arms


def compare_within(arms: Iterable[str], base: str) -> dict[str, str]:
  """`against` for a `product`: compares each arm with the one that has `base` on the first axis and the same
  others.

  For base 'rope', 'alibi + pre' is compared with 'rope + pre'.
  """
  return {name: JOIN.join([base, *name.split(JOIN)[1:]]) for name in arms}


def prefix_errors(arm: str) -> contextlib.AbstractContextManager[None]:
  """Prefixes a ValueError with an arm's name."""
  return prefixing(f'the arm {arm!r}: ')


def select_arms(arms: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
  """The arms with these names; all for None.

  Raises:
    ValueError: for an unknown name, or no name.
  """
  if names is None:
    return dict(arms)
  require(
    len(names) > 0, f'--arms= names no arm; remove the flag to train all, or use some of {", ".join(arms)}'
  )
  for name in names:
    if name not in arms:
      raise ValueError(f'--arms: the study has no arm {name!r}; {suggest(name, arms)}')
  return {name: arm for name, arm in arms.items() if name in names}


def change_config(base: ConfigDict, changes: Changes) -> ConfigDict:
  """A copy of a complete config, with the changes of an arm.

  Raises:
    ValueError: for an unknown field.
  """
  config = base.copy_and_resolve_references()
  for path, value in changes.items():
    assign(config, path, value)
  return config


def validate_names(study: Study) -> None:
  """Raises ValueError for a field, a variant or a measure that does not exist; imports neither JAX nor a
  variant.

  Args:
    study: with a complete config.
  """
  for name, changes in study.arms.items():
    with prefix_errors(name):
      validate_fields(change_config(study.config, changes))
  for text in study.measures:
    require_variants(text, tfm.studies.measures)


def load_study(file: str) -> Study:
  """The study of `FILE` or `FILE:args`, a Python file with `get_study(arg)`: a path, or a name that
  `tfm configs` lists.

  Raises:
    ValueError: if the file is missing, or defines no study.
  """
  name, _, arg = file.partition(':')
  path = find_file(name, EXPERIMENTS)
  study = load_function(path, 'get_study')(arg)
  require(
    isinstance(study, Study),
    f'{path}: get_study(arg) returns a value of type {type(study).__name__}, not a Study',
  )
  return study
