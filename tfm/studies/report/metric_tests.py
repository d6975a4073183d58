"""Tests of the metrics beside the study's: higher or lower than in the base, undecided, or not tested."""

import dataclasses
from collections.abc import Collection, Mapping

from tfm.studies.report.ranking import Ranking
from tfm.studies.report.values import metric_names, scalar_values, values_by_x
from tfm.studies.statistics.compare import compare_arms
from tfm.studies.statistics.summary import Spread


# Metrics with values at more x than this are plotted, not tabulated, and not tested.
MAX_COLUMNS = 8
MARKS = {'higher': '▲', 'lower': '▼'}
LEGEND = (
  '▲ ▼: higher, lower than the base, as shown by the tests of the ranking; each metric by itself is '
  'corrected for all its arms and columns. No mark: undecided. (untested): a cost, or a metric that does not '
  'vary over seeds, or too few seeds; behind a value: runs of the arm, or of its base, diverged.'
)


@dataclasses.dataclass(frozen=True)
class MetricTests:
  """The findings on one metric.

  Attributes:
    values: x, or None for a scalar → arm → seed → value.
    findings: (x, arm) → 'higher', 'lower' or 'undecided'; empty if nothing was tested.
    partial: the arms of which runs diverged, or of whose base. Where a metric has no worst value, these runs
      cannot count as such, so that the arms are not tested.
    within: x → the deviation over seeds within the arms that vary alike; None if it was not tested.
    noisy: x → the arms that vary far more than those.
  """

  values: Mapping[float | None, Mapping[str, Mapping[int, float]]]
  findings: Mapping[tuple[float | None, str], str]
  partial: Collection[str]
  within: Mapping[float | None, Spread | None]
  noisy: Mapping[float | None, Collection[str]]

  def spread(self, x: float | None, arm: str) -> Spread | None:
    """The deviation of an arm's runs, if it is that of others, too."""
    return None if arm in self.noisy.get(x, ()) else self.within.get(x)

  def mark(self, x: float | None, arm: str) -> str:
    """' ▲', ' ▼', ' (untested)' or ''; '' where the whole column is untested."""
    is_column_tested = any(known == x for known, _ in self.findings)
    mark = MARKS.get(self.findings.get((x, arm)), '(untested)' * (is_column_tested and arm in self.partial))
    return f' {mark}' if mark else ''


def compare_scalars(results: dict, ranking: Ranking) -> dict[str, MetricTests]:
  """The tests of the scalar metrics other than the study's, by name."""
  study = results['study']
  return {
    metric: compare_at_each_x(
      {None: scalar_values(results, metric)}, ranking, metric not in study.get('costs', ())
    )
    for metric in metric_names(results, by_x=False)
    if metric != study['metric']
  }


def compare_by_x(results: dict, ranking: Ranking) -> dict[str, MetricTests]:
  """The tests of the metrics with values at no more than MAX_COLUMNS values of x, by name."""
  tests = {}
  for metric in metric_names(results, by_x=True):
    values = {}
    for arm, seeds in values_by_x(results, metric).items():
      for seed, line in seeds.items():
        for x, value in line.items():
          values.setdefault(x, {}).setdefault(arm, {})[seed] = value
    if 0 < len(values) <= MAX_COLUMNS:
      tests[metric] = compare_at_each_x(dict(sorted(values.items())), ranking, True)
  return tests


def compare_at_each_x(
  values: Mapping[float | None, Mapping[str, Mapping[int, float]]], ranking: Ranking, is_tested: bool
) -> MetricTests:
  """Compares arms with their bases at each x, but those of which runs diverged, or of whose base.

  Args:
    is_tested: False for costs, which are not outcomes of seeds.
  """
  findings, within, noisy = {}, {}, {}
  whole = {row.name for row in ranking.rows if row.outcome and len(row.values) == row.outcome.n}
  partial = {
    row.name
    for row in ranking.rows
    if row.compared_with and not row.is_base and not {row.name, row.compared_with} <= whole
  }
  if is_tested:
    bases = {row.name: row.compared_with for row in ranking.rows if row.compared_with}
    for x, of_arms in values.items():
      known = {arm: seeds for arm, seeds in of_arms.items() if seeds and arm in whole}
      pairs = {arm: base for arm, base in bases.items() if {arm, base} <= set(known)}
      analysis = compare_arms(known, pairs, families=len(values))
      found = {arm: each.finding for arm, each in analysis.comparisons.items() if each.p is not None}
      findings |= {(x, arm): finding for arm, finding in found.items()}
      within[x] = analysis.within if found else None
      noisy[x] = analysis.noisy
  return MetricTests(values, findings, partial, within, noisy)
