"""Learned positions, with and without rows for negative positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.positions
from tfm import spec
from tfm.positions.protocol import Position


def make_learned(text, length=4):
  return spec.factory(text, tfm.positions, Position, width=3, heads=1, head_width=3, length=length)()


def test_negative_positions_read_the_rows_before():
  position, x = make_learned('learned(rows=5, before=2)'), jnp.zeros((1, 3, 3))
  variables = position.init(jax.random.key(0), x, jnp.array([[0, 1, 2]]), method='embed')
  table = jax.tree.leaves(variables)[0]
  assert table.shape == (7, 3) and position.max_positions == 5
  y = position.apply(variables, x, jnp.array([[-1, 0, 4]]), method='embed')
  np.testing.assert_array_equal(y[0], table[np.array([1, 2, 6])])


@pytest.mark.parametrize(
  'text, message',
  [
    ('learned(rows=3)', 'rows=3 is shorter than data.length=4'),
    ('learned(before=-1)', 'before=-1 must be at least 0'),
  ],
)
def test_invalid_settings(text, message):
  with pytest.raises(ValueError, match=message):
    make_learned(text)
