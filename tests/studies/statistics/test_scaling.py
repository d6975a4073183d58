"""Curves of loss against compute: planted ones are found, and a published fit is found again."""

import math
import pathlib

import numpy as np
import pytest
from scipy import stats

from tfm.studies.statistics.scaling import HUBER, PowerLaw, compare_curves, fit_power_law, read_multipliers


# Besiroglu et al. 2024, Table 1: E, A, B, alpha, beta.
PUBLISHED = PowerLaw(1.8172, (np.log(482.01), np.log(2085.43)), (0.3478, 0.3658))
FLOOR, FIRST, LAST = 1.5, 1e13, 1e15
# Arm → its factor and exponent, and what its multiplier against 'base' is at both ends, by hand.
PLANTED = dict(base=(1.0, 0.25), ahead=(0.9, 0.25), same=(1.0, 0.25), crossing=(0.9, 0.2))
MULTIPLIERS = dict(
  ahead=((1 / 0.9) ** 4, (1 / 0.9) ** 4),
  same=(1.0, 1.0),
  crossing=((1 / 0.9) ** 4, (1 / 0.9) ** 4 * 100 ** (0.2 / 0.25 - 1)),
)


def plant(noise, scales=5, seed=0, seeds=3):
  """The means over seeds of the planted arms."""
  draw, compute = np.random.default_rng(seed), np.geomspace(FIRST, LAST, scales)
  return {
    arm: [
      (c, ((FLOOR + factor * (c / FIRST) ** -exponent) * np.exp(draw.normal(0, noise, seeds))).mean())
      for c in compute
    ]
    for arm, (factor, exponent) in PLANTED.items()
  }


def huber_loss(law, x, losses):
  """Σ Huber(log loss - log prediction), written out."""
  r = np.abs(np.log(losses / law(x)))
  return np.where(r <= HUBER, r**2 / 2, HUBER * (r - HUBER / 2)).sum()


def test_published_fit_of_published_runs():
  """Besiroglu et al. leave out the five runs with the highest loss, and D = C / 6N."""
  table = np.loadtxt(pathlib.Path(__file__).with_name('hoffmann2022_figure4.csv'), delimiter=',', skiprows=2)
  parameters, compute, losses = table[np.argsort(table[:, 2])][:-5].T
  x = np.column_stack([parameters, compute / (6 * parameters)])
  fit = fit_power_law(x, losses)
  assert len(losses) == 240 and huber_loss(fit, x, losses) <= huber_loss(PUBLISHED, x, losses)
  assert fit.floor == pytest.approx(PUBLISHED.floor, abs=0.001)
  # Within a tenth of the published standard errors, 0.02.
  assert fit.exponents == pytest.approx(PUBLISHED.exponents, abs=0.002)
  assert fit.log_factors == pytest.approx(PUBLISHED.log_factors, abs=0.04)


def test_planted_curves_without_noise():
  curves = compare_curves(plant(0.0), 'base', draws=4)
  for arm, (factor, exponent) in PLANTED.items():
    curve = curves[arm]
    assert (curve.floor, curve.factor, curve.exponent) == pytest.approx((FLOOR, factor, exponent), rel=1e-3)
    assert [m.value for m in curve.multipliers] == pytest.approx(MULTIPLIERS.get(arm, ()), rel=1e-3)
  assert list(curves) == [*PLANTED] and curves['base'].multipliers == ()
  # 0.9 x^-0.2 = x^-0.25 at x = 0.9^-20.
  assert curves['crossing'].crossing == pytest.approx(0.9**-20 * FIRST, rel=0.01)


def test_noise_leaves_equal_arms_undecided():
  curves = compare_curves(plant(0.002), 'base', draws=40)
  assert {arm: curve.relation for arm, curve in curves.items() if arm != 'base'} == dict(
    ahead='better', same='undecided', crossing='crosses'
  )


def test_scales_that_are_no_power_law_widen_the_intervals():
  """The residuals of the fit count, not the noise of runs."""
  straight, bent = plant(0.0), plant(0.0)
  for arm in bent:
    bent[arm] = [(c, loss * (1 + 0.01 * (-1) ** i)) for i, (c, loss) in enumerate(bent[arm])]

  def width(points):
    multiplier = compare_curves(points, 'base', draws=20)['ahead'].multipliers[0]
    return multiplier.high - multiplier.low

  assert width(bent) > 0.05 > width(straight)


def test_too_few_points():
  with pytest.raises(ValueError, match='8 points do not determine 9 unknowns; use more scales'):
    compare_curves(plant(0.0, scales=2), 'base')


@pytest.mark.slow
def test_intervals_hold():
  """All multipliers of a study lie in their intervals in 95 % of studies, the exponent of each arm too."""
  studies, together, exponents = 60, 0, dict.fromkeys(PLANTED, 0)
  for seed in range(studies):
    curves = compare_curves(plant(0.002, seed=seed), 'base', draws=60)
    for arm, curve in curves.items():
      low, high = curve.exponent_interval
      exponents[arm] += low <= PLANTED[arm][1] <= high
    together += all(
      multiplier.low <= true <= multiplier.high
      for arm, expected in MULTIPLIERS.items()
      for multiplier, true in zip(curves[arm].multipliers, expected)
    )
  # At this level 99.8 % of such counts lie between these; intervals of half the width hold in 30 studies.
  least, most = stats.binom.interval(0.998, studies, 0.95)
  for held in (together, *exponents.values()):
    assert least <= held <= most
  assert sum(exponents.values()) < studies * len(PLANTED)  # of intervals twice as wide all would hold


def test_multipliers_are_read_between_the_points_of_the_base():
  """Of a base that loses 0.5 for each tenfold compute, an arm with the losses of four times its own."""
  points = dict(
    base=[(10.0, [2.5, 2.7]), (100.0, [2.1]), (1000.0, [1.5, 1.7])],
    arm=[(5.0, [2.65]), (25.0, [2.1]), (25 * 10**0.5, [1.75, 1.95]), (1000.0, [1.3])],
  )
  outside, *inside, beyond = read_multipliers(points, 'base')['arm']
  assert outside is beyond is None
  assert [m.value for m in inside] == pytest.approx([4, 4])
  # Deviation of a run 0.1·√2, of 3 degrees of freedom in all; two intervals; at a point, and half way.
  half = (
    stats.t.ppf(1 - 0.05 / 4, 3) * np.log(10) / 0.5 * np.sqrt(0.02) * np.sqrt([1 + 1, 1 / 2 + 1 / 4 + 1 / 8])
  )
  assert [np.log(m.high / m.value) for m in inside] == pytest.approx(half)
  assert [np.log(m.value / m.low) for m in inside] == pytest.approx(half)


def test_multipliers_between_points_of_a_power_law():
  """0.9 x^-0.2 = (m x)^-0.25, at each of five points over two tenfolds: within half a percent."""
  points = {name: [(c, [loss]) for c, loss in of_arm] for name, of_arm in plant(0.0).items()}
  found = [m.value for m in read_multipliers(points, 'base')['crossing']]
  assert found == pytest.approx(0.9**-4 * np.geomspace(1, LAST / FIRST, 5) ** -0.2, rel=5e-3)


def test_where_the_base_rises_again_its_first_fall_counts():
  base = [(1.0, [2.0]), (10.0, [3.0]), (100.0, [2.0]), (1e3, [2.5]), (1e4, [1.5])]
  (found,) = read_multipliers(dict(base=base, arm=[(1.0, [2.25])]), 'base')['arm']
  assert 10 < found.value < 100


def test_multipliers_of_single_runs_have_no_bounds():
  single = {name: [(c, [loss]) for c, loss in of_arm] for name, of_arm in plant(0.0).items()}
  found = [m for m in read_multipliers(single, 'base')['ahead'] if m]
  assert found and all((m.low, m.high) == (0, math.inf) for m in found)


def test_intervals_of_multipliers_that_are_read_hold():
  """All together in 95 % of 1,000 studies, whose base is a line in log compute."""
  compute, draw, held = np.geomspace(1, 1e4, 5), np.random.default_rng(0), 0
  for _ in range(1000):
    noise = draw.normal(0, 0.02, (2, 5, 4))
    points = {
      arm: [(c, 3 - 0.1 * np.log(c * factor) + of_point) for c, of_point in zip(compute, of_arm)]
      for (arm, factor), of_arm in zip({'base': 1.0, 'arm': 4.0}.items(), noise)
    }
    held += all(m is None or m.low <= 4 <= m.high for m in read_multipliers(points, 'base')['arm'])
  assert 940 <= held <= 985
