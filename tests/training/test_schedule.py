"""Learning rates against the formulas of the papers, step by step."""

import math

import numpy as np
import pytest

from tfm import spec
from tfm.training.schedule import SCHEDULES, schedule


WARMUP, STEPS, WIDTH, PEAK = 10, 100, 64, 0.3


def after_warmup(formula):
  return lambda t: t / WARMUP if t < WARMUP else formula(t)


def share(t):
  return min((t - WARMUP) / (STEPS - WARMUP), 1)


FORMULAS = {
  'noam': lambda t: WIDTH**-0.5 * min(t**-0.5, t * WARMUP**-1.5),
  'rsqrt': after_warmup(lambda t: math.sqrt(WARMUP / t)),
  f'rsqrt(flat={3 * WARMUP})': lambda t: min(t / WARMUP, 1, math.sqrt(3 * WARMUP / t)),
  'constant': after_warmup(lambda t: 1.0),
  'cosine(floor=0.2)': after_warmup(lambda t: 0.2 + 0.8 * (1 + math.cos(math.pi * share(t))) / 2),
  'cosine': after_warmup(lambda t: 0.1 + 0.9 * (1 + math.cos(math.pi * share(t))) / 2),
  'linear': after_warmup(lambda t: 1 - share(t)),
  'linear(floor=0.3)': after_warmup(lambda t: 1 - 0.7 * share(t)),
  'wsd': after_warmup(lambda t: 1.0 if t < 80 else max(100 - t, 0) / 20),
  'wsd(decay=0.25, floor=0.2)': after_warmup(lambda t: 1.0 if t < 75 else 1 - 0.8 * min(t - 75, 25) / 25),
}


@pytest.mark.parametrize('text', FORMULAS)
def test_formula(text):
  rate = schedule(spec.build_from_table(text, SCHEDULES), PEAK, WARMUP, STEPS, WIDTH)
  steps = range(1, STEPS + 20)  # a schedule stays where it ends
  np.testing.assert_allclose(
    [float(rate(t - 1)) for t in steps], [PEAK * FORMULAS[text](t) for t in steps], rtol=2e-5, atol=1e-7
  )


def test_every_schedule_has_a_formula():
  assert {text.partition('(')[0] for text in FORMULAS} == set(SCHEDULES)


@pytest.mark.parametrize('text', SCHEDULES)
def test_no_warmup_starts_at_a_finite_positive_rate(text):
  rate = schedule(spec.build_from_table(text, SCHEDULES), PEAK, 0, STEPS, WIDTH)
  assert 0 < float(rate(0)) <= PEAK * 1.0001


@pytest.mark.parametrize('text, first', [('noam', WIDTH**-0.5), ('rsqrt', 1), ('constant', 1), ('wsd', 1)])
@pytest.mark.parametrize('warmup', [0, 1])
def test_without_warmup_the_first_step_has_the_peak(text, first, warmup):
  rate = schedule(spec.build_from_table(text, SCHEDULES), PEAK, warmup, STEPS, WIDTH)
  np.testing.assert_allclose(float(rate(0)), PEAK * first, rtol=1e-6)


def test_the_last_step_may_be_the_only_one_after_the_warmup():
  rate = schedule(spec.build_from_table('linear', SCHEDULES), PEAK, 9, 10, WIDTH)
  np.testing.assert_allclose([float(rate(8)), float(rate(9))], [PEAK, 0], atol=1e-7)


def test_bad_share_is_refused():
  with pytest.raises(ValueError, match=r'decay=0'):
    spec.build_from_table('wsd(decay=0)', SCHEDULES)
