"""Norms start as plain normalisation, over the width alone; the formulas stand in tests/reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.layers.norm import NORMS, LayerNorm, RMSNorm

X = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 64)) * 5 + 2, jnp.float32)


@pytest.mark.parametrize('norm, names', [
  (LayerNorm(), {'scale', 'bias'}), (LayerNorm(bias=False), {'scale'}), (RMSNorm(), {'scale'})])
def test_parameters(norm, names):
  params = norm.init(jax.random.key(0), X)['params']
  assert set(params) == names
  assert all(box.names == ('embed',) and box.value.shape == (64,) for box in params.values())
  assert (params['scale'].value == 1).all() and not ('bias' in params and params['bias'].value.any())


def test_moments_at_the_start():
  y = LayerNorm().init_with_output(jax.random.key(0), X)[0]
  np.testing.assert_allclose(y.mean(-1), 0, atol=1e-5)
  np.testing.assert_allclose(y.std(-1), 1, rtol=1e-4)
  y = RMSNorm().init_with_output(jax.random.key(0), X)[0]
  np.testing.assert_allclose((y**2).mean(-1), 1, rtol=1e-4)
  assert (jnp.abs(y.mean(-1)) > 0.1).all()  # the mean stays


@pytest.mark.parametrize('norm', [LayerNorm(bias=False), RMSNorm()])
def test_constant_and_zero_rows_are_finite_with_finite_gradients(norm):
  x = jnp.stack([jnp.zeros(64), jnp.ones(64)])
  params = norm.init(jax.random.key(0), x)
  gradient = jax.grad(lambda x: norm.apply(params, x).sum())(x)
  assert jnp.isfinite(norm.apply(params, x)).all() and jnp.isfinite(gradient).all()


def test_table():
  assert NORMS == {'layernorm': LayerNorm, 'rmsnorm': RMSNorm}
