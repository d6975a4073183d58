"""Rotary positions that decay, against their formula."""

import jax.numpy as jnp
import numpy as np
import pytest

import tfm.positions
from tests.reference import rope
from tfm import spec
from tfm.positions.protocol import Position


DRAW = np.random.default_rng(0)
Q, K = DRAW.standard_normal((2, 6, 4, 8)), DRAW.standard_normal((2, 6, 2, 8))
Q_AT, K_AT = DRAW.integers(0, 300, (2, 6)), DRAW.integers(0, 300, (2, 6))


def make(text, length=300, head_width=8):
  return spec.factory(
    text, tfm.positions, Position, width=4 * head_width, heads=4, head_width=head_width, length=length
  )()


def rotate(text, q_at=Q_AT, k_at=K_AT, dtype=jnp.float32):
  arrays = jnp.asarray(Q, dtype), jnp.asarray(K, dtype), jnp.asarray(q_at), jnp.asarray(k_at)
  return [np.asarray(x.astype(jnp.float32)) for x in make(text).apply({}, *arrays, method='rotate')]


@pytest.mark.parametrize('theta, scale_base', [(10_000.0, 512.0), (100.0, 30.0)])
def test_formula(theta, scale_base):
  q, k = rotate(f'xpos({theta}, {scale_base})')
  np.testing.assert_allclose(q, rope.xpos(Q, Q_AT, 1, theta, scale_base, 150), rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(k, rope.xpos(K, K_AT, -1, theta, scale_base, 150), rtol=1e-4, atol=1e-4)


def test_products_depend_on_the_distance_and_decay():
  def products(shift):
    q, k = rotate('xpos(scale_base=60)', Q_AT + shift, K_AT + shift)
    return np.einsum('bthc,bshc->bhts', q[:, :, :2], k)

  near, earlier = products(0), (K_AT[:, None] <= Q_AT[:, :, None])[:, None].repeat(2, 1)
  np.testing.assert_allclose(near[earlier], products(91)[earlier], rtol=0, atol=2e-4)
  norms = np.linalg.norm(Q, axis=-1)[:, :, None, :2] * np.linalg.norm(K, axis=-1)[:, None]
  slowest = ((6 / 8 + 0.4) / 1.4) ** ((Q_AT[:, :, None] - K_AT[:, None]) / 60)
  assert np.all(np.abs(near)[earlier] <= (norms * slowest[..., None]).transpose(0, 3, 1, 2)[earlier] + 1e-5)


def test_factors_stay_finite_up_to_the_last_position():
  position = make('xpos(scale_base=64)', length=1024)
  assert 2500 < position.max_positions < 2600
  at = jnp.array([[0, position.max_positions - 1]])
  ones = jnp.ones((1, 2, 4, 8), jnp.bfloat16)
  for x in position.apply({}, ones, ones, at, at, method='rotate'):
    assert bool(jnp.isfinite(x).all()) and float(jnp.abs(x.astype(jnp.float32)).max(axis=-1).min()) > 0


@pytest.mark.parametrize(
  'text, settings, message',
  [
    ('xpos', dict(head_width=7), 'the head width is 7'),
    ('xpos(scale_base=4)', {}, 'scale_base=4 lets factors overflow on 300 tokens'),
    ('xpos(scale_base=0.0)', {}, 'scale_base=0.0 must be above 0'),
  ],
)
def test_invalid_settings(text, settings, message):
  with pytest.raises(ValueError, match=message):
    make(text, **settings)


def test_the_advised_scale_base_is_valid():
  with pytest.raises(ValueError) as error:
    make('xpos(scale_base=4)')
  make(f'xpos(scale_base={str(error.value).rpartition(" ")[2]})')
