"""The verdict on each arm: better or worse than its base, the same, or undecided."""

import dataclasses
from collections.abc import Mapping

from tfm.studies.statistics import power, shares
from tfm.studies.statistics.compare import Analysis, Comparison, compare_arms
from tfm.studies.statistics.contrasts import Values
from tfm.studies.statistics.shares import Share, compare_shares
from tfm.studies.statistics.summary import ALPHA, format_p


@dataclasses.dataclass(frozen=True)
class Criterion:
  """What makes an arm better.

  Attributes:
    lower_is_better: the direction of the metric.
    margin: a difference that does not matter; None: every difference does.
    solved_at: the value from which on a run counts as solved, so that the outcome is yes or no; None: the
      metric itself is compared.
  """

  lower_is_better: bool
  margin: float | None = None
  solved_at: float | None = None

  def is_solved(self, value: float) -> bool:
    return value <= self.solved_at if self.lower_is_better else value >= self.solved_at


@dataclasses.dataclass(frozen=True)
class Verdict:
  """On one arm.

  Attributes:
    word: 'better', 'worse', 'same', 'undecided', or 'not compared'.
    comparison: of the metric over the finished seeds; None without one.
    p: of the test that decides, corrected for all comparisons; None if there was no test.
    reason: a phrase, '' where the comparison says all.
    seeds: of each arm that would decide; None if unknown, or more than are searched for.
  """

  word: str
  comparison: Comparison | None = None
  p: float | None = None
  reason: str = ''
  seeds: int | None = None


@dataclasses.dataclass(frozen=True)
class Findings:
  """What the runs of a study show in one metric.

  Attributes:
    analysis: of the metric over finished seeds.
    outcomes: arm → its runs that solved the task or, where that is not asked, that did not diverge; of all
      its runs.
    verdicts: arm → Verdict, for every arm with a base.
  """

  analysis: Analysis
  outcomes: Mapping[str, Share]
  verdicts: Mapping[str, Verdict]


def judge_arms(
  values: Mapping[str, Values], diverged: Mapping[str, int], bases: Mapping[str, str], criterion: Criterion
) -> Findings:
  """The verdict on every arm.

  A run that diverged has the worst outcome there is. So it is not solved; and where runs of an arm or of its
  base diverged, the arm is worse than the base if more of its runs diverged than chance allows (Boschloo's
  test), or if it had more of them and what finished is worse, too; better likewise; and never the same. Then
  each of the two tests has half of the error probability.

  Args:
    values: arm → seed → value of the finished runs.
    diverged: arm → its number of runs that diverged.
    bases: arm → its base; both have runs.
  """
  finished = {arm: of_arm for arm, of_arm in values.items() if of_arm}
  pairs = {arm: base for arm, base in bases.items() if {arm, base} <= set(finished)}
  counts_solved = criterion.solved_at is not None
  families = 2 if any(diverged.values()) and not counts_solved else 1
  analysis = compare_arms(finished, pairs, None if counts_solved else criterion.margin, families)

  def outcome(arm):
    good = values[arm].values()
    if counts_solved:
      good = filter(criterion.is_solved, good)
    return Share(len([*good]), len(values[arm]) + diverged.get(arm, 0))

  outcomes = {arm: outcome(arm) for arm in values if values[arm] or diverged.get(arm)}
  known = {arm: base for arm, base in bases.items() if {arm, base} <= set(outcomes)}
  ps = {arm: min(1.0, families * p) for arm, p in compare_shares(outcomes, known).items()}

  def judge(arm, base):
    comparison = analysis.comparisons.get(arm)
    by_outcome = _judge_outcomes(outcomes[arm], outcomes[base], ps[arm], families * len(ps), comparison)
    if counts_solved:
      return by_outcome
    if not diverged.get(arm) and not diverged.get(base):
      return _judge_comparison(analysis, arm, criterion)
    of_finished = _judge_comparison(analysis, arm, criterion) if comparison else by_outcome
    diverged_more = outcomes[base].value - outcomes[arm].value
    agrees = diverged_more >= 0 if of_finished.word == 'worse' else diverged_more <= 0
    reason = f'{_count_diverged(outcomes[arm])} diverged, of {base} {_count_diverged(outcomes[base])}'
    if by_outcome.word == 'undecided' and of_finished.word in ('better', 'worse') and agrees:
      return dataclasses.replace(of_finished, reason=f'by what finished; {reason}')
    return dataclasses.replace(by_outcome, reason=reason)

  verdicts = {arm: judge(arm, base) for arm, base in known.items() if arm != base}
  for arm, base in bases.items():
    if arm != base and arm not in known:
      verdicts[arm] = Verdict('not compared', reason=f'no finished run of {base if arm in outcomes else arm}')
  return Findings(analysis, outcomes, verdicts)


def _judge_comparison(analysis: Analysis, arm: str, criterion: Criterion) -> Verdict:
  """The verdict of the tests of the metric."""
  comparison = analysis.comparisons[arm]
  words = ('better', 'worse') if criterion.lower_is_better else ('worse', 'better')
  word = dict(zip(('lower', 'higher'), words)).get(comparison.finding, comparison.finding)
  seeds = None
  if word == 'undecided' and comparison.df is not None:
    seeds = power.seeds_to_decide_apart(comparison, analysis.tests, criterion.margin)
  elif word == 'undecided' and comparison.p is not None:
    seeds = power.seeds_to_decide(comparison.difference, analysis, criterion.margin)
  return Verdict(word, comparison, comparison.p, comparison.reason, seeds)


def _judge_outcomes(arm: Share, base: Share, p: float, tests: int, comparison: Comparison | None) -> Verdict:
  """The verdict of the test of two shares of good outcomes."""
  if p <= ALPHA:
    return Verdict('better' if arm.value > base.value else 'worse', comparison, p)
  seeds = shares.seeds_to_decide(arm, base, tests, power.MAX_SEEDS)
  return Verdict('undecided', comparison, p, format_p(p), seeds)


def _count_diverged(share: Share) -> str:
  return f'{share.n - share.k} of {share.n}'
