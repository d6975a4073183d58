"""The arms of a study, ranked: means, verdicts, which of them may be best, and what did not finish."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from tfm.studies.report.values import PART, check_results, count_diverged, scalar_values, values_by_x
from tfm.studies.report.wording import decimals_for, first_line, format_seeds
from tfm.studies.statistics.compare import Comparison, compare_arms
from tfm.studies.statistics.shares import Share
from tfm.studies.statistics.summary import Summary, summarize
from tfm.studies.statistics.texts import text_error
from tfm.studies.statistics.verdicts import Criterion, Findings, Verdict, judge_arms


@dataclasses.dataclass(frozen=True)
class Series:
  """What a line of a plot is of.

  Attributes:
    rank: from 1, the best; None without one.
    index: determines the colour.
  """

  rank: int | None
  index: int
  name: str

  @property
  def is_base(self) -> bool:
    """Whether others are compared with it."""
    return False

  @property
  def label(self) -> str:
    """The name, after the rank if it has one."""
    return self.name if self.rank is None else f'{self.rank} {self.name}'


@dataclasses.dataclass(frozen=True)
class Row(Series):
  """One arm; its index is that in the study.

  Attributes:
    values: of the study's metric, by finished seed.
    outcome: its runs that solved the task, or that did not diverge, of all; None without a run.
    judged: the verdict of the tests; None for a base, or without one.
    text_interval: of the difference from the base, for seeds and texts drawn anew; None if unknown.
    notes: what did not finish, and why.
    compared_with: the arm that it is compared with: itself for a base; None without one.
    has_started: whether any seed has started.
  """

  values: Mapping[int, float]
  summary: Summary | None
  outcome: Share | None
  judged: Verdict | None
  text_interval: tuple[float, float] | None
  notes: tuple[str, ...]
  compared_with: str | None
  has_started: bool = True

  @property
  def is_base(self) -> bool:
    return self.compared_with == self.name

  @property
  def label(self) -> str:
    """As in the tables: without a value '–' in the place of the rank."""
    return f'{self.rank or "–"} {self.name}'

  @property
  def comparison(self) -> Comparison | None:
    """Its difference from the base."""
    return self.judged and self.judged.comparison

  @property
  def verdict(self) -> str:
    """'base', 'better', 'worse', 'same', 'undecided', 'not compared', 'did not finish', or 'not trained
    yet'.
    """
    return (
      'not trained yet'
      if not self.has_started
      else 'did not finish'
      if self.outcome is None
      else 'base'
      if self.is_base
      else self.judged.word
      if self.judged
      else 'not compared'
    )


@dataclasses.dataclass(frozen=True)
class Ranking:
  """The arms of a study, best first, those without a value last.

  Attributes:
    criterion: what makes an arm better; findings: what the tests show.
    leaders: the arms that may be the best, the best mean first: the others are shown to be worse than it
      (multiple comparisons with the best: Hsu 1984); () if that is not known.
    lead: the comparison of the second arm with the first; None if there is none.
  """

  rows: tuple[Row, ...]
  criterion: Criterion
  findings: Findings
  leaders: tuple[str, ...]
  lead: Comparison | None

  @property
  def places(self) -> int:
    """The number of decimals that shows two digits of the median deviation over seeds."""
    return decimals_for([row.summary for row in self.rows if row.summary])

  @property
  def bases(self) -> list[str]:
    """The arms that others are compared with, in the study's order."""
    in_order = sorted(self.rows, key=lambda row: row.index)
    return list(dict.fromkeys(row.compared_with for row in in_order if row.compared_with))


def rank_arms(results: dict) -> Ranking:
  """The arms, best first: by the share of runs that solved the task or did not diverge where they differ in
  it, then by the mean.

  Raises:
    ValueError: as `check_results`.
  """
  check_results(results)
  study = results['study']
  criterion = Criterion(study['lower_is_better'], study.get('equal_within'), study.get('solved_at'))
  values = scalar_values(results, study['metric'])
  diverged = count_diverged(results, study['metric'])
  bases = {name: study.get('against', {}).get(name, study['base']) for name in values}
  findings = judge_arms(
    values, diverged, {name: base for name, base in bases.items() if base is not None}, criterion
  )
  analysis, sign = findings.analysis, 1 if criterion.lower_is_better else -1
  summaries = {
    arm: summarize([*of_arm.values()], None if arm in analysis.noisy else analysis.within)
    for arm, of_arm in values.items()
    if of_arm
  }
  order = sorted(summaries, key=lambda arm: (-findings.outcomes[arm].value, sign * summaries[arm].mean))
  leaders, lead = (), None
  if len({*bases.values()}) == 1 and criterion.solved_at is None:
    leaders, lead = find_leaders(
      {arm: values[arm] for arm in order if not diverged[arm]}, criterion.lower_is_better
    )
  rows = [
    Row(
      order.index(arm['name']) + 1 if arm['name'] in order else None,
      index,
      arm['name'],
      values[arm['name']],
      summaries.get(arm['name']),
      findings.outcomes.get(arm['name']),
      findings.verdicts.get(arm['name']),
      find_text_interval(results, arm['name'], bases[arm['name']], findings.verdicts.get(arm['name'])),
      tuple(list_notes(results, arm, values[arm['name']])),
      bases[arm['name']],
      has_started(results, arm, values[arm['name']]),
    )
    for index, arm in enumerate(results['arms'])
  ]
  return Ranking(
    tuple(sorted(rows, key=lambda row: row.rank or math.inf)), criterion, findings, leaders, lead
  )


def find_leaders(
  values: Mapping[str, Mapping[int, float]], lower_is_better: bool
) -> tuple[tuple[str, ...], Comparison | None]:
  """The arms that may be the best, and the comparison of the second with the first.

  A difference that does not matter (`Criterion.margin`) is one here, too.

  Args:
    values: arm → seed → value, best mean first.
  """
  if len(values) < 2:
    return (), None
  first, second = [*values][:2]
  found = compare_arms(values, dict.fromkeys(values, first))
  if found.floor is None:
    return (), None
  worse = 'higher' if lower_is_better else 'lower'
  others = [arm for arm, comparison in found.comparisons.items() if comparison.finding != worse]
  return (first, *others), found.comparisons[second]


def find_text_interval(
  results: dict, arm: str, base: str | None, verdict: Verdict | None
) -> tuple[float, float] | None:
  """The interval of an arm's difference from its base for seeds and texts drawn anew, from the values of
  `measures.parts`; None without them.
  """
  comparison = verdict and verdict.comparison
  if not comparison or comparison.interval is None or not comparison.error:
    return None
  parts = values_by_x(results, results['study']['metric'] + PART)
  weights = values_by_x(results, 'tokens' + PART)[arm]
  error = text_error(parts[arm], parts[base], next(iter(weights.values()), {}))
  if error is None:
    return None
  low, high = comparison.interval
  half = (high - low) / 2 * math.hypot(1, error / comparison.error)
  return comparison.difference - half, comparison.difference + half


def has_started(results: dict, arm: dict, values: Mapping[int, float]) -> bool:
  """Whether any seed of an arm has started."""
  return bool(
    values or arm['error'] or arm['diverged'] or {*results['study']['seeds']} - {*arm.get('untrained', ())}
  )


def list_notes(results: dict, arm: dict, values: Mapping[int, float]) -> Iterable[str]:
  """What did not finish in an arm, and other remarks."""
  if arm['error']:
    yield f'failed: {first_line(arm["error"])}'
  if arm['diverged']:
    yield f'diverged at {format_seeds(arm["diverged"])}' + (f': {arm["why"]}' if arm.get('why') else '')
  untrained = arm.get('untrained', ())
  missing = [
    seed
    for seed in results['study']['seeds']
    if seed not in values and seed not in (*arm['diverged'], *untrained)
  ]
  if untrained and values:
    yield f'{format_seeds(untrained)} not trained yet'
  if missing and not arm['error']:
    yield f'no finite {results["study"]["metric"]} of {format_seeds(missing)}'
  yield from arm.get('notes', ())
