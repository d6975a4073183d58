"""Rotary positions against both forms in which the paper writes them."""

import jax.numpy as jnp
import numpy as np
import pytest

from reference import rope
from tfm.positions.rope import Rope

DRAW = np.random.default_rng(0)
Q, K = DRAW.standard_normal((2, 6, 4, 8)), DRAW.standard_normal((2, 6, 2, 8))
Q_AT, K_AT = DRAW.integers(0, 300, (2, 6)), DRAW.integers(0, 300, (2, 6))


def rotated(q_at, k_at, dtype=jnp.float32, theta=10_000.0):
  made = Rope(width=32, heads=4, head_width=8, length=300, theta=theta)
  q, k = made.apply({}, jnp.asarray(Q, dtype), jnp.asarray(K, dtype), jnp.asarray(q_at), jnp.asarray(k_at),
                    method='rotate')
  return np.asarray(q.astype(jnp.float32)), np.asarray(k.astype(jnp.float32))


@pytest.mark.parametrize('theta', [10_000.0, 100.0])
@pytest.mark.parametrize('oracle', [rope.rotate, rope.rotate_complex])
def test_rope_is_the_rotation(oracle, theta):
  q, k = rotated(Q_AT, K_AT, theta=theta)
  np.testing.assert_allclose(q, oracle(Q, Q_AT, theta), rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(k, oracle(K, K_AT, theta), rtol=1e-4, atol=1e-4)


def test_products_depend_on_the_distance_alone():
  """Su et al. 2021, eq. 11: what the rotation is for."""
  def products(shift):
    q, k = rotated(Q_AT + shift, K_AT + shift)
    return np.einsum('bthc,bshc->bhts', q[:, :, :2], k)
  np.testing.assert_allclose(products(0), products(57), rtol=1e-3, atol=1e-3)
  assert np.abs(products(0) - np.einsum('bthc,bshc->bhts', Q[:, :, :2], K)).max() > 0.1


def test_position_zero_and_lengths_of_vectors_are_kept():
  q, _ = rotated(np.zeros((2, 6), int), K_AT)
  np.testing.assert_allclose(q, Q, rtol=1e-6)
  q, _ = rotated(Q_AT, K_AT)
  np.testing.assert_allclose(np.linalg.norm(q, axis=-1), np.linalg.norm(Q, axis=-1), rtol=1e-5)


def test_angles_stay_exact_in_bfloat16():
  """In bf16 itself, position 257 would be 256 and its angle 1 off."""
  at = np.full((2, 6), 257)
  q, _ = rotated(at, K_AT, jnp.bfloat16)
  np.testing.assert_allclose(q, rope.rotate(Q, at), atol=0.05)
