"""The schedule of a pipeline: who works when, and on what."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.parallel import pipeline_parallelism
from tfm.parallel.pipeline_parallelism import Schedule, plan_schedule


PLANS = [
  Schedule(S, R, M) for S, R, M in itertools.product((2, 3, 4), (1, 2, 3), (1, 2, 4, 6)) if R == 1 or M >= S
]


class TestSchedule:
  @pytest.mark.parametrize('plan', PLANS, ids=str)
  def test_every_microbatch_goes_through_all_groups_in_order(self, plan):
    """By walking them round: a stage has one piece of work at a time, and gets it from the stage before in
    the iteration before.
    """
    at = plan.iteration_index()
    S, R, M = plan.stages, plan.repeats, plan.microbatches
    for s in range(S):
      assert len(set(at[s].flatten())) == R * M
    for m in range(M):
      path = [at[group % S, group // S, m] for group in range(S * R)]
      steps = np.diff(path)
      assert (steps > 0).all() and all(step == 1 for i, step in enumerate(steps) if (i + 1) % S)
    busy = at.size / (plan.iterations * S)
    assert at.max() == plan.iterations - 1 and plan.bubble == pytest.approx(1 - busy)

  @pytest.mark.parametrize(
    'S, R, M, bubble',
    [(4, 1, 4, 3 / 7), (4, 1, 12, 3 / 15), (4, 3, 4, 3 / 15), (8, 1, 32, 7 / 39), (2, 5, 3, 1 / 16)],
  )
  def test_bubble(self, S, R, M, bubble):
    """Huang et al. 2019, §2.3: (K - 1) / (M + K - 1); rounds reduce it as much as more microbatches do."""
    assert Schedule(S, R, M).bubble == pytest.approx(bubble)

  @pytest.mark.parametrize(
    'S, R, rows, parts, M',
    [
      (2, 1, 64, 2, 8),
      (4, 1, 64, 1, 16),
      (4, 2, 64, 1, 8),
      (4, 1, 60, 2, 30),
      (4, 1, 8, 2, 4),
      (2, 1, 8, 8, 1),
      (4, 8, 64, 1, 4),
      (2, 1, 7, 2, 7),
    ],
  )
  def test_microbatches_that_nobody_named(self, S, R, rows, parts, M):
    assert plan_schedule(S, R, 0, rows, parts).microbatches == M

  @pytest.mark.parametrize(
    'S, R, microbatches, rows, parts, sentence',
    [
      (2, 1, 3, 8, 1, 'pipeline.microbatches=3 does not divide 8 rows.*; use 4 or 2'),
      (2, 1, 8, 8, 2, 'microbatches=8 does not divide 8 rows, of which 2 are computed at once; use 4 or 2'),
      (
        4,
        2,
        2,
        8,
        1,
        'repeats=2 needs at least as many microbatches as config.mesh.stage=4, and there are 2 of 8 rows'
        '.*microbatches=4 or 8',
      ),
      (4, 2, 0, 8, 4, 'there are 2 of 8 rows, of which 4 are computed at once; use more rows, or repeats=1'),
    ],
  )
  def test_refusals(self, S, R, microbatches, rows, parts, sentence):
    with pytest.raises(ValueError, match=sentence):
      plan_schedule(S, R, microbatches, rows, parts)

  @pytest.mark.parametrize(
    'S, R',
    [
      (4, 2),
      (6, 4),
      *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in ((2, 2), (2, 4), (4, 6), (3, 2), (4, 3), (8, 8))
      ),
    ],
  )
  def test_stages_change_groups_without_loss(self, S, R):
    """Stage s has groups r S + s, and before group r of the layers in order."""
    groups = jnp.arange(S * R * 2).reshape(S, R * 2)
    dealt = jax.jit(
      jax.vmap(
        lambda own: pipeline_parallelism._exchange_groups(own, S, R), axis_name=pipeline_parallelism.AXIS
      )
    )(groups)
    np.testing.assert_array_equal(
      dealt.reshape(S, R, 2), np.arange(S * R * 2).reshape(R, S, 2).swapaxes(0, 1)
    )
