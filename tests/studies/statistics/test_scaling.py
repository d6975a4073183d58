"""Curves of loss against compute: planted ones are found, and a published fit is found again."""

import pathlib

import numpy as np
import pytest

from tfm.studies.statistics.scaling import HUBER, PowerLaw, compare_curves, fit_power_law


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
  """All multipliers of a study lie in their intervals in 95 % of studies, exponents in 95 % each."""
  studies, together, exponents = 40, 0, []
  for seed in range(studies):
    curves = compare_curves(plant(0.002, seed=seed), 'base', draws=60)
    exponents += [
      curve.exponent_interval[0] <= PLANTED[arm][1] <= curve.exponent_interval[1]
      for arm, curve in curves.items()
    ]
    together += all(
      multiplier.low <= true <= multiplier.high
      for arm, expected in MULTIPLIERS.items()
      for multiplier, true in zip(curves[arm].multipliers, expected)
    )
  assert together >= 35 and np.mean(exponents) >= 0.9  # P < 0.02 if the level is 0.95
