"""Mask pictures."""

import numpy as np
from matplotlib.image import imread

from tfm.evaluation import mask_picture
from tfm.masks.causal import Causal
from tfm.masks.protocol import table
from tfm.masks.window import Window


def test_a_short_mask_is_drawn_pair_by_pair():
  seen = table(Causal(), 100)
  assert (mask_picture.shares(seen) == seen).all()


def test_a_long_one_in_cells():
  T = 3 * mask_picture.CELLS - 1
  cells = mask_picture.shares(table(Causal(), T))
  assert cells.shape == (mask_picture.CELLS,) * 2
  assert (np.triu(cells, 1) == 0).all() and (np.tril(cells, -1) == np.tril(np.ones_like(cells), -1)).all()
  # A square of three on the diagonal shows 6 of its 9 pairs, the last one, of two, 3 of 4.
  assert np.allclose(np.diag(cells), [6 / 9] * (mask_picture.CELLS - 1) + [3 / 4])


def test_a_panel_for_each(tmp_path):
  one, two = tmp_path / 'one.png', tmp_path / 'two.png'
  mask_picture.draw({'causal': Causal()}, 16, one)
  mask_picture.draw({'a': Causal(), 'b': Causal() & Window(3)}, 5000, two)
  assert imread(two).shape[1] == 2 * imread(one).shape[1]
  colours = {tuple(pixel) for pixel in (imread(one)[..., :3] * 255).round().astype(int).reshape(-1, 3)}
  for colour in (mask_picture.SEEN, mask_picture.UNSEEN):
    assert tuple(bytes.fromhex(colour[1:])) in colours
