"""Positions on a grid: the formulas, token by token; a table that grows; and what is no grid."""

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
SURROUNDINGS = dict(width=D, heads=2, head_width=C, length=14)
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((2, 6, D))


def embedded(result, params, positions=POSITIONS, x=X):
  return np.asarray(result.apply(params, jnp.asarray(x, jnp.float32), jnp.asarray(positions), method='embed'))


@pytest.mark.parametrize('theta', [10_000.0, 30.0])
def test_sinusoidal(theta):
  result = Sinusoidal2D(rows=3, columns=4, theta=theta, **SURROUNDINGS)
  added = np.array([[grid.sinusoidal(at, D, theta) for at in row] for row in PLACES])
  np.testing.assert_allclose(embedded(result, {}), X + added, atol=2e-6)


@pytest.mark.parametrize('theta, interleaved', [(100.0, False), (10_000.0, True)])
def test_rope(theta, interleaved):
  result = Rope2D(rows=3, columns=4, theta=theta, interleaved=interleaved, **SURROUNDINGS)
  q, k = DRAW.standard_normal((2, 2, 6, 2, C))
  turned = result.apply(
    {},
    *(jnp.asarray(x, jnp.float32) for x in (q, k)),
    jnp.asarray(POSITIONS),
    jnp.asarray(POSITIONS),
    method='rotate',
  )
  for x, y in zip((q, k), turned):
    for b, t, h in np.ndindex(2, 6, 2):
      np.testing.assert_allclose(
        y[b, t, h], grid.rotate(x[b, t, h], PLACES[b][t], theta, interleaved), atol=2e-6
      )


def table(result):
  shapes = jax.eval_shape(
    lambda key: result.init(key, jnp.zeros((1, 1, D)), jnp.zeros((1, 1), int), method='embed'),
    jax.random.key(0),
  )
  [box] = shapes['params'].values()
  return jnp.asarray(np.random.default_rng(1).standard_normal(box.value.shape), jnp.float32)


def test_a_grid_of_its_own_size_is_the_plain_table():
  module, plain = Learned2D(rows=3, columns=4, **SURROUNDINGS), Learned(**SURROUNDINGS)
  params = {'params': {'table': table(plain)}}
  assert table(module).shape == table(plain).shape == (14, D)
  np.testing.assert_array_equal(embedded(module, params), embedded(plain, params))


@pytest.mark.parametrize('method, kernel', [('bilinear', grid.linear), ('bicubic', grid.cubic)])
def test_a_grid_that_grew_reads_the_same_table(method, kernel):
  small = Learned2D(rows=2, columns=3, **SURROUNDINGS | dict(length=8))
  module = Learned2D(rows=3, columns=4, original=(2, 3), method=method, **SURROUNDINGS)
  found = table(module)
  assert found.shape == table(small).shape == (8, D)
  learnt = np.asarray(found, np.float64)
  patches = np.einsum(
    'rR,cC,RCD->rcD', grid.weights(3, 2, kernel), grid.weights(4, 3, kernel), learnt[2:].reshape(2, 3, D)
  )
  expected = np.array(
    [[learnt[p] if at is None else patches[at] for p, at in zip(*rows)] for rows in zip(POSITIONS, PLACES)]
  )
  np.testing.assert_allclose(embedded(module, {'params': {'table': found}}), X + expected, atol=2e-6)


@pytest.mark.parametrize('length, found', [(16, (4, 4, 0)), (17, (4, 4, 1)), (18, (4, 4, 2)), (1, (1, 1, 0))])
def test_squares_need_not_be_told(length, found):
  for kind in (Learned2D, Sinusoidal2D, Rope2D):
    assert kind(**SURROUNDINGS | dict(length=length)).grid == found


@pytest.mark.parametrize(
  'text, sentence',
  [
    ('learned_2d', r'data.length=14 is no square number, nor one plus one or two class tokens; set rows'),
    ('rope_2d(rows=3)', r'rows=3 and columns=None must be set together'),
    ('sinusoidal_2d(rows=3, columns=5)', r'rows=3 × columns=5 are 15 tokens, and data.length=14'),
    ('sinusoidal_2d(rows=0, columns=5)', r'rows=0 and columns=5 must be at least 1'),
    ('sinusoidal_2d(rows=3, columns=4, theta=0)', r'theta=0 must be above 0'),
    ('learned_2d(rows=3, columns=4, original=(2, 0))', r'original=\(2, 0\) must be two numbers above 0'),
    ('learned_2d(rows=3, columns=4, original=9)', r'original=9 must be two numbers above 0'),
    (
      'learned_2d(rows=3, columns=4, method="nearest")',
      r"method='nearest' is unknown; known: bilinear, bicubic",
    ),
  ],
)
def test_refusals(text, sentence):
  with pytest.raises(ValueError, match=sentence):
    spec.factory(text, tfm.positions, Position, **SURROUNDINGS)


@pytest.mark.parametrize(
  'text, sentence',
  [
    ('sinusoidal_2d', 'model.width=6 is no multiple of 4'),
    ('rope_2d', 'the head width is 6 .* a multiple of 4'),
  ],
)
def test_widths_that_cannot_be_shared_out(text, sentence):
  with pytest.raises(ValueError, match=sentence):
    spec.factory(text, tfm.positions, Position, width=6, heads=1, head_width=6, length=16)
