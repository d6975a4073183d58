"""Sinusoidal positions against the paper's formula."""

import jax.numpy as jnp
import numpy as np
import pytest

import tfm.positions
from tests.reference import sinusoidal
from tfm import spec
from tfm.positions.protocol import Position
from tfm.positions.sinusoidal import Sinusoidal


WIDTH = 12
SIZES = dict(heads=2, head_width=6, length=16)
X = np.random.default_rng(0).standard_normal((2, 5, WIDTH))
NEAR = np.random.default_rng(1).integers(0, 300, (2, 5))
FAR = np.array([[100_000, 99_999, 131_071, 10_000_000, 2**31 - 1], [0, 1, 4_096, 65_537, 777_777]])


def embed(x, positions, dtype=jnp.float32, **settings):
  module = Sinusoidal(width=WIDTH, **SIZES, **settings)
  return module.apply({}, jnp.asarray(x, dtype), jnp.asarray(positions), method='embed')


def encodings(positions, theta=10_000.0):
  return np.array([[sinusoidal.encoding(int(m), WIDTH, theta) for m in row] for row in positions])


@pytest.mark.parametrize('theta', [10_000.0, 30.0])
@pytest.mark.parametrize('positions', [NEAR, FAR])
def test_adds_the_formula_at_every_position(positions, theta):
  """In float32 arithmetic the angle itself would be 0.004 off at position 100 000."""
  y = embed(np.zeros_like(X), positions, theta=theta)
  np.testing.assert_allclose(y, encodings(positions, theta), rtol=0, atol=2e-6)
  np.testing.assert_allclose(embed(X, positions, theta=theta), X + encodings(positions, theta), atol=2e-6)


def test_sines_before_cosines():
  y, pe = embed(np.zeros_like(X), NEAR, interleaved=False), encodings(NEAR)
  np.testing.assert_allclose(y, np.concatenate([pe[..., 0::2], pe[..., 1::2]], -1), atol=2e-6)


def test_shift_is_a_rotation_of_each_pair():
  """As the paper requires: PE(m + k) is a linear function of PE(m), the same at every m."""
  y = np.asarray(embed(np.zeros((1, 2, WIDTH)), [[5, 105]])[0]).reshape(2, -1, 2)
  z = np.asarray(embed(np.zeros((1, 2, WIDTH)), [[12, 112]])[0]).reshape(2, -1, 2)
  inner, outer = (z * y).sum(-1), z[..., 0] * y[..., 1] - z[..., 1] * y[..., 0]
  np.testing.assert_allclose(inner[0], inner[1], atol=1e-5)
  np.testing.assert_allclose(outer[0], outer[1], atol=1e-5)
  assert np.abs(y[0] - y[1]).max() > 0.1


def test_bfloat16_outputs_have_exact_angles():
  y = embed(np.zeros_like(X), np.full((2, 5), 257), jnp.bfloat16)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(y.astype(jnp.float32), encodings(np.full((2, 5), 257)), atol=4e-3)


def test_has_no_max_position_and_acts_on_the_embedding():
  module = Sinusoidal(width=WIDTH, **SIZES)
  assert module.max_positions is None and module.active_hooks() == {'embed'}


@pytest.mark.parametrize(
  'text, width, messages',
  [
    ('sinusoidal', 7, ['model.width=7 is odd', 'choose an even one']),
    ('sinusoidal(theta=0)', 8, ['theta=0', 'above 0']),
    ('sinusoidal(interleaved=1)', 8, ['interleaved=1', 'bool']),
  ],
)
def test_invalid_settings(text, width, messages):
  with pytest.raises(ValueError) as error:
    spec.factory(text, tfm.positions, Position, width=width, **SIZES)
  assert all(message in str(error.value) for message in messages), error.value
