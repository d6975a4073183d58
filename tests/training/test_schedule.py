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
  return (t - WARMUP) / (STEPS - WARMUP)


FORMULAS = {
  'noam': lambda t: WIDTH**-0.5 * min(t**-0.5, t * WARMUP**-1.5),
  'rsqrt': after_warmup(lambda t: math.sqrt(WARMUP / t)),
  f'rsqrt(flat={3 * WARMUP})': lambda t: min(t / WARMUP, 1, math.sqrt(3 * WARMUP / t)),
  'constant': after_warmup(lambda t: 1.0),
  'cosine(floor=0.2)': after_warmup(lambda t: 0.2 + 0.8 * (1 + math.cos(math.pi * share(t))) / 2),
  'linear': after_warmup(lambda t: 1 - share(t)),
  'wsd(decay=0.25)': after_warmup(lambda t: 1.0 if t < 75 else (100 - t) / 25),
}


@pytest.mark.parametrize('text', FORMULAS)
def test_formula(text):
  rate = schedule(spec.build_from_table(text, SCHEDULES), PEAK, WARMUP, STEPS, WIDTH)
  got = [float(rate(t - 1)) for t in range(1, STEPS + 1)]
  np.testing.assert_allclose(
    got, [PEAK * FORMULAS[text](t) for t in range(1, STEPS + 1)], rtol=2e-5, atol=1e-7
  )


def test_every_schedule_has_a_formula():
  assert {text.partition('(')[0] for text in FORMULAS} == set(SCHEDULES)


@pytest.mark.parametrize('text', SCHEDULES)
def test_no_warmup_starts_at_a_finite_positive_rate(text):
  rate = schedule(spec.build_from_table(text, SCHEDULES), PEAK, 0, STEPS, WIDTH)
  assert 0 < float(rate(0)) <= PEAK * 1.0001


def test_bad_share_is_refused():
  with pytest.raises(ValueError, match=r'decay=0'):
    spec.build_from_table('wsd(decay=0)', SCHEDULES)
