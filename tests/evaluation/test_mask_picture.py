"""Mask pictures."""

import numpy as np
from matplotlib.image import imread

from tfm.evaluation import mask_picture
from tfm.masks.causal import Causal
from tfm.masks.protocol import table
from tfm.masks.window import Window


def test_a_short_mask_has_one_cell_per_pair():
  visible = table(Causal(), 100)
  assert (mask_picture.downsample(visible) == visible).all()


def test_a_long_mask_is_downsampled():
  T = 3 * mask_picture.CELLS - 1
  cells = mask_picture.downsample(table(Causal(), T))
  assert cells.shape == (mask_picture.CELLS,) * 2
  assert (np.triu(cells, 1) == 0).all() and (np.tril(cells, -1) == np.tril(np.ones_like(cells), -1)).all()
  # A 3 × 3 cell on the diagonal has 6 of 9 pairs visible; the last one, 2 × 2, has 3 of 4.
  assert np.allclose(np.diag(cells), [6 / 9] * (mask_picture.CELLS - 1) + [3 / 4])


def test_each_mask_has_a_panel(tmp_path):
  one, two = tmp_path / 'one.png', tmp_path / 'two.png'
  mask_picture.draw({'causal': Causal()}, 16, one)
  mask_picture.draw({'a': Causal(), 'b': Causal() & Window(3)}, 5000, two)
  assert imread(two).shape[1] == 2 * imread(one).shape[1]
  colours = {tuple(pixel) for pixel in (imread(one)[..., :3] * 255).round().astype(int).reshape(-1, 3)}
  for colour in (mask_picture.VISIBLE, mask_picture.HIDDEN):
    assert tuple(bytes.fromhex(colour[1:])) in colours
