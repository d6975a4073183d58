"""Grid positions: the formulas, token by token; interpolated tables; invalid grids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.positions
from tests.reference import grid
from tfm import spec
from tfm.positions.learned import Learned
from tfm.positions.learned_2d import Learned2D
from tfm.positions.protocol import Position
from tfm.positions.rope_2d import Rope2D
from tfm.positions.sinusoidal_2d import Sinusoidal2D


D, C = 16, 8
POSITIONS = np.array([[0, 1, 2, 3, 12, 13], [5, 4, 9, 8, 0, 1]])  # of 14 tokens: 2, and 3 rows of 4
PLACES = [[grid.place(p, columns=4, before=2) for p in row] for row in POSITIONS]
SIZES = dict(width=D, heads=2, head_width=C, length=14)
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((2, 6, D))


def embed(module, params, positions=POSITIONS, x=X):
  return np.asarray(module.apply(params, jnp.asarray(x, jnp.float32), jnp.asarray(positions), method='embed'))


@pytest.mark.parametrize('theta', [10_000.0, 30.0])
def test_sinusoidal(theta):
  module = Sinusoidal2D(rows=3, columns=4, theta=theta, **SIZES)
  encodings = np.array([[grid.sinusoidal(at, D, theta) for at in row] for row in PLACES])
  np.testing.assert_allclose(embed(module, {}), X + encodings, atol=2e-6)


@pytest.mark.parametrize('theta, interleaved', [(100.0, False), (10_000.0, True)])
def test_rope(theta, interleaved):
  module = Rope2D(rows=3, columns=4, theta=theta, interleaved=interleaved, **SIZES)
  q, k = DRAW.standard_normal((2, 2, 6, 2, C))
  rotated = module.apply(
    {},
    *(jnp.asarray(x, jnp.float32) for x in (q, k)),
    jnp.asarray(POSITIONS),
    jnp.asarray(POSITIONS),
    method='rotate',
  )
  for x, y in zip((q, k), rotated):
    for b, t, h in np.ndindex(2, 6, 2):
      np.testing.assert_allclose(
        y[b, t, h], grid.rotate(x[b, t, h], PLACES[b][t], theta, interleaved), atol=2e-6
      )


def draw_table(module):
  shapes = jax.eval_shape(
    lambda key: module.init(key, jnp.zeros((1, 1, D)), jnp.zeros((1, 1), int), method='embed'),
    jax.random.key(0),
  )
  [box] = shapes['params'].values()
  return jnp.asarray(np.random.default_rng(1).standard_normal(box.value.shape), jnp.float32)


def test_grid_of_the_original_size_reads_the_plain_table():
  module, plain = Learned2D(rows=3, columns=4, **SIZES), Learned(**SIZES)
  params = {'params': {'table': draw_table(plain)}}
  assert draw_table(module).shape == draw_table(plain).shape == (14, D)
  np.testing.assert_array_equal(embed(module, params), embed(plain, params))


@pytest.mark.parametrize('method, kernel', [('bilinear', grid.linear), ('bicubic', grid.cubic)])
def test_larger_grid_interpolates_the_same_table(method, kernel):
  small = Learned2D(rows=2, columns=3, **SIZES | dict(length=8))
  module = Learned2D(rows=3, columns=4, original=(2, 3), method=method, **SIZES)
  table = draw_table(module)
  assert table.shape == draw_table(small).shape == (8, D)
  rows_by_position = np.asarray(table, np.float64)
  patches = np.einsum(
    'rR,cC,RCD->rcD',
    grid.weights(3, 2, kernel),
    grid.weights(4, 3, kernel),
    rows_by_position[2:].reshape(2, 3, D),
  )
  expected = np.array(
    [
      [rows_by_position[p] if at is None else patches[at] for p, at in zip(*rows)]
      for rows in zip(POSITIONS, PLACES)
    ]
  )
  np.testing.assert_allclose(embed(module, {'params': {'table': table}}), X + expected, atol=2e-6)


@pytest.mark.parametrize(
  'length, expected', [(16, (4, 4, 0)), (17, (4, 4, 1)), (18, (4, 4, 2)), (1, (1, 1, 0))]
)
def test_square_grids_are_inferred_from_the_length(length, expected):
  for kind in (Learned2D, Sinusoidal2D, Rope2D):
    assert kind(**SIZES | dict(length=length)).grid == expected


@pytest.mark.parametrize(
  'text, message',
  [
    ('learned_2d', r'data.length=14 is no square number, nor one plus one or two class tokens; set rows'),
    ('rope_2d(rows=3)', r'rows=3 and columns=None must be set together'),
    ('sinusoidal_2d(rows=3, columns=5)', r'rows=3 × columns=5 are 15 tokens, and data.length=14'),
    ('sinusoidal_2d(rows=0, columns=5)', r'rows=0 must be at least 1'),
    ('sinusoidal_2d(rows=3, columns=4, theta=0)', r'theta=0 must be above 0'),
    ('learned_2d(rows=3, columns=4, original=(2, 0))', r'original=\(2, 0\) has an entry that must'),
    ('learned_2d(rows=3, columns=4, original=9)', r'original=9 must be of type tuple\[int, int\]'),
    (
      'learned_2d(rows=3, columns=4, method="nearest")',
      r"method='nearest' is unknown; known: bilinear, bicubic",
    ),
  ],
)
def test_invalid_settings(text, message):
  with pytest.raises(ValueError, match=message):
    spec.factory(text, tfm.positions, Position, **SIZES)


@pytest.mark.parametrize(
  'text, message',
  [
    ('sinusoidal_2d', 'model.width=6 is no multiple of 4'),
    ('rope_2d', 'the head width is 6 .* a multiple of 4'),
  ],
)
def test_invalid_widths(text, message):
  with pytest.raises(ValueError, match=message):
    spec.factory(text, tfm.positions, Position, width=6, heads=1, head_width=6, length=16)
