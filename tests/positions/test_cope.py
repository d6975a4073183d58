"""Contextual positions against their formula, and with the kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import cope as oracle
from tfm.layers.locations import Locations
from tfm.positions.cope import contextual_logits


DRAW = np.random.default_rng(0)
B, T, S, H, K, C = 2, 5, 9, 4, 2, 4
Q, KEY = DRAW.standard_normal((B, T, H, C)), DRAW.standard_normal((B, S, K, C))
# The queries are the last tokens of the row; two documents; padding on the left.
K_SEGMENTS = np.array([[1] * 4 + [2] * 5, [0] * 2 + [1] * 7])
K_POSITIONS = np.array([[*range(4), *range(5)], [0, 0, *range(7)]])
COUNTED = (K_SEGMENTS[:, None, :] == K_SEGMENTS[:, -T:, None]) & (K_SEGMENTS[:, None, :] > 0)
COUNTED &= K_POSITIONS[:, None, :] <= K_POSITIONS[:, -T:, None]


def compute(table, q=Q, k=KEY):
  grouped = jnp.asarray(q, jnp.float32).reshape(B, T, K, H // K, C).transpose(0, 2, 3, 1, 4)
  q_at, k_at = (
    Locations(jnp.asarray(K_POSITIONS[:, x]), jnp.asarray(K_SEGMENTS[:, x])) for x in (np.s_[-T:], np.s_[:])
  )
  keys = jnp.asarray(k, jnp.float32).swapaxes(1, 2)
  return jax.jit(contextual_logits)(jnp.asarray(table, jnp.float32), grouped, keys, q_at, k_at).reshape(
    B, H, T, S
  )


@pytest.mark.parametrize('rows', [1, 2, 3, 20])
def test_formula(rows):
  """With few rows positions are clipped, with many they are not."""
  table = DRAW.standard_normal((rows, C))
  places = K_POSITIONS[:, -T:], K_POSITIONS, K_SEGMENTS[:, -T:], K_SEGMENTS
  expected = oracle.bias(table, Q, KEY, *places)
  found, counted = np.asarray(compute(table)), np.broadcast_to(COUNTED[:, None], expected.shape)
  np.testing.assert_allclose(found[counted], expected[counted], rtol=2e-5, atol=2e-5)


def test_open_gates_count_tokens():
  """With gates of 1, p is the distance and one."""
  table = np.arange(20.0)[:, None] * np.full((1, C), 1 / C)
  found = np.asarray(compute(table, np.ones_like(Q), np.full_like(KEY, 100.0)))
  distance = K_POSITIONS[:, -T:, None] - K_POSITIONS[:, None, :]
  np.testing.assert_allclose(found[:, 0][COUNTED], (1 + distance)[COUNTED], rtol=1e-6)
