"""Plots: means and bands, labels that do not overlap, distinguishable colours."""

import numpy as np
import pytest

from tests.studies.report.made_up import results
from tfm.studies.learning_rates import Optimum
from tfm.studies.report import axes, palette, plots
from tfm.studies.report.ranking import rank_arms
from tfm.studies.report.values import values_by_x


def test_bands_reach_from_the_lowest_to_the_highest_seed():
  """At each x that all seeds have; a diverged seed stands for itself."""
  study_results = results(dict(a=0.0), base='a', diverged=dict(a=[2]))
  rows = rank_arms(study_results).rows
  seeds = {'a': {0: {1: 1.0, 2: 4.0, 3: 0.0}, 1: {1: 3.0, 2: 2.0}, 2: {1: 9.0}}}
  band, alone = plots.mean_lines(rows, seeds, {('a', 2)})
  assert band.x == [1, 2]
  np.testing.assert_allclose([band.mean, band.low, band.high], [[2, 3], [1, 2], [3, 4]])
  assert (alone.x, alone.mean, alone.low) == ([1], [9.0], None)
  assert plots.mean_lines(rows, {'a': {}}) == []


@pytest.mark.parametrize('seed', range(3))
def test_labels_are_apart_in_order_and_near(seed):
  heights = np.sort(np.random.default_rng(seed).uniform(0, 3, 9))
  found = axes.spread_labels(heights, 0.3, 0.0, 3.0)
  assert (np.diff(found) >= 0.3 - 1e-9).all() and found[0] >= -1e-9 and found[-1] <= 3 + 1e-9
  # Where there is room nothing moves.
  np.testing.assert_allclose(axes.spread_labels([0.0, 1.0, 2.9], 0.3, 0.0, 3.0), [0, 1, 2.9])
  np.testing.assert_allclose(axes.spread_labels([1.0, 1.0], 0.4, 0.0, 3.0), [0.8, 1.2])


def test_the_top_of_a_curve_is_cut_where_only_its_start_reaches():
  (row,) = rank_arms(results(dict(a=0.0), base='a')).rows
  x = [0, 10, 20, 50, 100]
  line = plots.Line(row, x, [9, 5, 3, 2, 1], [9, 5, 3, 2, 1], [9, 5, 3.5, 2, 1])
  assert plots.upper_limit([line]) == 3.5
  assert plots.start_limits([line]) == (1, 3.5)
  figure = plots.draw_lines([line], 'loss', axes.XAxis('step'), axes.WIDE, plots.start_limits([line]))
  low, high = figure.axes[0].get_ylim()
  assert high == pytest.approx(3.6) and low == pytest.approx(0.9)


def test_rates_have_a_ring_at_the_optimum_and_far_results_are_cut():
  (row,) = rank_arms(results(dict(a=0.0), base='a')).rows
  curve = [9.0, 2.2, 2.0, 2.1]
  line = plots.Line(row, [1e-4, 1e-3, 1e-2, 1e-1], curve, curve, curve)
  figure = plots.draw_rates([line], {'a': Optimum(0.02, 1.95, 1e-2, False)}, 'loss', axes.WIDE)
  (drawn,) = figure.axes
  assert drawn.get_xscale() == 'log' and drawn.get_ylim()[1] < 3
  rings = [
    (*ring.get_xdata(), *ring.get_ydata()) for ring in drawn.lines if ring.get_markerfacecolor() == 'none'
  ]
  assert rings == [(0.02, 1.95)]


def test_twenty_arms_are_distinguishable():
  styles = {(palette.hue(i, False), palette.dash(i)) for i in range(20)}
  assert len(styles) == 20 and 'base' not in {hue for hue, _ in styles}
  assert palette.hue(3, True) == 'base'


def test_lengths_double_and_training_is_marked():
  study_results = results(dict(rope=0.0, alibi=-0.1))
  lines = plots.mean_lines(rank_arms(study_results).rows, values_by_x(study_results, 'loss_at_length'))
  figure = plots.draw_lines(lines, 'loss', axes.XAxis('length', 2, training_x=128), axes.NARROW)
  (drawn,) = figure.axes
  assert drawn.get_xscale() == 'log' and drawn.transAxes.transform((0, 0))[0] > 0
  assert [128, 128] in [list(line.get_xdata()) for line in drawn.lines]
  assert {'1 alibi', '2 rope'} <= {text.get_text() for text in figure.texts}


def test_a_long_name_is_cut_and_keeps_its_rank():
  (row,) = rank_arms(results({'a' * 40: 0.0}, base=None)).rows
  assert axes.label_of(row, axes.NARROW) == '1 ' + 'a' * 13 + '…'
  assert len(axes.label_of(row, axes.WIDE)) == 28
