"""Plots: means and bands, labels that do not overlap, distinguishable colours."""

import numpy as np
import pytest

from tests.studies.report.made_up import results
from tfm.studies.report import palette, plots, ranking


def test_bands_reach_from_the_lowest_to_the_highest_seed():
  """At each x that all seeds have; a diverged seed stands for itself."""
  study_results = results(dict(a=0.0), base='a', diverged=dict(a=[2]))
  rows = ranking.rank_arms(study_results)
  seeds = {'a': {0: {1: 1.0, 2: 4.0, 3: 0.0}, 1: {1: 3.0, 2: 2.0}, 2: {1: 9.0}}}
  band, alone = plots.mean_lines(rows, seeds, {('a', 2)})
  assert band.x == [1, 2]
  np.testing.assert_allclose([band.mean, band.low, band.high], [[2, 3], [1, 2], [3, 4]])
  assert (alone.x, alone.mean, alone.low) == ([1], [9.0], None)
  assert plots.mean_lines(rows, {'a': {}}) == []


@pytest.mark.parametrize('seed', range(3))
def test_labels_are_apart_in_order_and_near(seed):
  heights = np.sort(np.random.default_rng(seed).uniform(0, 3, 9))
  found = plots.spread_labels(heights, 0.3, 0.0, 3.0)
  assert (np.diff(found) >= 0.3 - 1e-9).all() and found[0] >= -1e-9 and found[-1] <= 3 + 1e-9
  # Where there is room nothing moves.
  np.testing.assert_allclose(plots.spread_labels([0.0, 1.0, 2.9], 0.3, 0.0, 3.0), [0, 1, 2.9])
  np.testing.assert_allclose(plots.spread_labels([1.0, 1.0], 0.4, 0.0, 3.0), [0.8, 1.2])


def test_the_top_of_a_curve_is_cut_where_only_its_start_reaches():
  row = ranking.rank_arms(results(dict(a=0.0), base='a'))[0]
  x = [0, 10, 20, 50, 100]
  line = plots.Line(row, x, [9, 5, 3, 2, 1], [9, 5, 3, 2, 1], [9, 5, 3.5, 2, 1])
  assert plots.upper_limit([line]) == 3.5
  axes = plots.draw_lines([line], 'loss', plots.XAxis('step'), plots.WIDE, clip_start=True).axes[0]
  assert axes.get_ylim()[1] == pytest.approx(3.5, abs=0.1) and axes.get_ylim()[0] < 1


def test_twenty_arms_are_distinguishable():
  styles = {(palette.hue(i, False), palette.dash(i)) for i in range(20)}
  assert len(styles) == 20 and 'base' not in {hue for hue, _ in styles}
  assert palette.hue(3, True) == 'base'


def test_lengths_double_and_training_is_marked():
  study_results = results(dict(rope=0.0, alibi=-0.1))
  lines = plots.mean_lines(
    ranking.rank_arms(study_results), ranking.values_by_x(study_results, 'loss_at_length')
  )
  figure = plots.draw_lines(lines, 'loss', plots.XAxis('length', is_log=True, training_x=128), plots.NARROW)
  axes = figure.axes[0]
  assert axes.get_xscale() == 'log' and axes.transAxes.transform((0, 0))[0] > 0
  assert [128, 128] in [list(line.get_xdata()) for line in axes.lines]
  assert {'1 alibi', '2 rope'} <= {text.get_text() for text in figure.texts}


def test_a_long_name_is_cut_and_keeps_its_rank():
  row = ranking.rank_arms(results({'a' * 40: 0.0}, base=None))[0]
  assert plots.label_of(row, plots.NARROW) == '1 ' + 'a' * 13 + '…'
  assert len(plots.label_of(row, plots.WIDE)) == 28
