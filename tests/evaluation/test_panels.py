"""Panels, in a picture and in the terminal."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from tfm.evaluation import panels
from tfm.evaluation.panels import CELLS, CurvesPanel, MaskPanel, TablePanel
from tfm.masks.causal import Causal
from tfm.masks.protocol import table
from tfm.masks.window import Window


pytestmark = pytest.mark.slow


def test_a_short_mask_has_one_cell_per_pair():
  visible = table(Causal(), 100)
  assert (panels.downsample(visible, 128) == visible).all()


def test_a_long_mask_is_downsampled():
  T = 3 * CELLS - 1
  cells = panels.downsample(table(Causal(), T), CELLS)
  assert cells.shape == (CELLS,) * 2
  assert (np.triu(cells, 1) == 0).all() and (np.tril(cells, -1) == np.tril(np.ones_like(cells), -1)).all()
  # A 3 × 3 cell on the diagonal has 6 of 9 pairs visible; the last one, 2 × 2, has 3 of 4.
  assert np.allclose(np.diag(cells), [6 / 9] * (CELLS - 1) + [3 / 4])


def colours(file):
  return {tuple(pixel) for pixel in (imread(file)[..., :3] * 255).round().astype(int).reshape(-1, 3)}


def rgb(colour):
  return tuple(bytes.fromhex(colour[1:]))


def test_a_picture_has_the_panels_side_by_side(tmp_path):
  one, two = tmp_path / 'one.png', tmp_path / 'two.png'
  panels.draw_panels([MaskPanel('causal', Causal(), 16)], one)
  panels.draw_panels([MaskPanel('a', Causal(), 5000), MaskPanel('b', Causal() & Window(3), 5000)], two)
  assert imread(two).shape[1] == 2 * imread(one).shape[1]
  assert {rgb(panels.VISIBLE), rgb(panels.HIDDEN)} <= colours(one)


def test_a_table_is_blue_above_0_and_red_below(tmp_path):
  file, values = tmp_path / 'table.png', np.array([[2.0, 0], [0, 0]])
  panels.draw_panels([TablePanel('table', values)], file)
  assert rgb(panels.VISIBLE) in colours(file) and rgb(panels.NEGATIVE) not in colours(file)
  panels.draw_panels([TablePanel('table', -values)], file)
  assert rgb(panels.NEGATIVE) in colours(file) and rgb(panels.VISIBLE) not in colours(file)


@pytest.mark.parametrize('names, has_legend', [('a', False), ('ab', True)])
def test_curves_have_the_name_of_their_axis_and_several_a_legend(names, has_legend):
  axes = Figure().subplots()
  CurvesPanel('rates', 'step', np.arange(3), dict.fromkeys(names, np.arange(3.0))).draw(axes)
  assert axes.get_xlabel().splitlines()[0] == 'step' and (axes.get_legend() is not None) == has_legend


def test_the_picture_has_the_type_that_its_name_says(tmp_path):
  panels.draw_panels(
    [CurvesPanel('line', 'step', np.arange(3), {'rate': np.arange(3.0)})], tmp_path / 'a.svg'
  )
  assert '<svg' in (tmp_path / 'a.svg').read_text('utf-8')
  with pytest.raises(ValueError, match='nonsense'):
    panels.draw_panels([MaskPanel('causal', Causal(), 4)], tmp_path / 'a.nonsense')


def lines(panel, width=60):
  console = Console(width=width, file=io.StringIO())
  console.print(panel.to_text(), highlight=False)
  return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_mask_in_the_terminal():
  assert lines(MaskPanel('', Causal(), 3)) == [
    '██····',
    '████··',
    '██████',
    'queries down, keys across',
    '66.7% of 3 × 3 pairs visible',
  ]
  # 2 × 2 pairs a cell: on the diagonal 3 of 4 are visible, below it all.
  shown = lines(MaskPanel('', Causal(), 64), 80)
  assert shown[0] == '▓▓' + 31 * '··' and shown[31] == 31 * '██' + '▓▓'
  assert shown[-1] == 'a cell is 2 × 2 positions'


def test_a_shade_is_extreme_only_for_none_and_all():
  assert lines(TablePanel('', np.array([[0, 1e-6, 0.5, 1 - 1e-6, 1]])))[0] == '··░░▒▒▓▓██'


def test_a_curve_in_the_terminal_has_bars_from_0():
  x, bar = np.arange(3), panels.BAR
  assert [line.split() for line in lines(CurvesPanel('', 'step', x, {'rate': np.array([0, 1.0, 2.0])}))] == [
    ['step', 'rate'],
    ['0', '0'],
    ['1', '1', '█' * (bar // 2)],
    ['2', '2', '█' * bar],
  ]
  negative = lines(CurvesPanel('', 'step', x, {'bias': np.array([-2.0, -1.0, 0])}))
  assert [line.count('█') for line in negative[1:]] == [0, bar // 2, bar]


def test_of_many_curves_and_points_some_are_shown():
  curves = {f'head {i}': np.full(100, float(i)) for i in range(panels.CURVES + 2)}
  shown = lines(CurvesPanel('', 'x', np.arange(100), curves, 'a note'), 200)
  assert f'head {panels.CURVES - 1}' in shown[0] and f'head {panels.CURVES}' not in shown[0]
  assert len(shown) == 1 + panels.ROWS + 2 and shown[-2:] == ['a note', 'and 2 more']
  assert shown[1].split()[0] == '0' and shown[panels.ROWS].split()[0] == '99'
