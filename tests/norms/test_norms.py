"""Norms at initialization normalize over the width alone; tests/reference has their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.norms.layernorm import LayerNorm
from tfm.norms.protocol import norm_factory
from tfm.norms.rmsnorm import RMSNorm


X = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 64)) * 5 + 2, jnp.float32)


@pytest.mark.parametrize(
  'norm, names',
  [
    (LayerNorm(), {'scale', 'bias'}),
    (LayerNorm(bias=False), {'scale'}),
    (LayerNorm(scale=False), {'bias'}),
    (RMSNorm(), {'scale'}),
  ],
)
def test_parameters(norm, names):
  params = norm.init(jax.random.key(0), X)['params']
  assert set(params) == names
  assert all(box.names == ('embed',) and box.value.shape == (64,) for box in params.values())
  initial = dict(scale=1, bias=0)
  assert all((box.value == initial[name]).all() for name, box in params.items())


def test_norm_without_parameters():
  module = norm_factory('layernorm(bias=False, scale=False)', bias=True)()
  assert not jax.tree.leaves(module.init(jax.random.key(0), X))
  np.testing.assert_array_equal(module.apply({}, X), LayerNorm().init_with_output(jax.random.key(0), X)[0])


def test_moments_at_initialization():
  y = LayerNorm().init_with_output(jax.random.key(0), X)[0]
  np.testing.assert_allclose(y.mean(-1), 0, atol=1e-5)
  np.testing.assert_allclose(y.std(-1), 1, rtol=1e-4)
  y = RMSNorm().init_with_output(jax.random.key(0), X)[0]
  np.testing.assert_allclose((y**2).mean(-1), 1, rtol=1e-4)
  assert (jnp.abs(y.mean(-1)) > 0.1).all()  # RMSNorm keeps the mean


@pytest.mark.parametrize('norm', [LayerNorm(bias=False), RMSNorm()])
def test_constant_and_zero_rows_are_finite_with_finite_gradients(norm):
  x = jnp.stack([jnp.zeros(64), jnp.ones(64)])
  params = norm.init(jax.random.key(0), x)
  gradient = jax.grad(lambda x: norm.apply(params, x).sum())(x)
  assert jnp.isfinite(norm.apply(params, x)).all() and jnp.isfinite(gradient).all()
