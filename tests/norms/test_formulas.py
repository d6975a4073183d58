"""Norms against their papers' formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import layers
from tfm.norms.dyt import DynamicTanh
from tfm.norms.layernorm import LayerNorm
from tfm.norms.rmsnorm import RMSNorm


DRAW = np.random.default_rng(0)
X = 3 * DRAW.standard_normal((2, 5, 8)) + 1
SCALE, BIAS = DRAW.standard_normal(8), DRAW.standard_normal(8)


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def apply(module, params, x=X, dtype=jnp.float32, **kwargs):
  params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params)
  return module.apply({'params': params}, jnp.asarray(x, dtype), **kwargs)


@pytest.mark.parametrize('epsilon', [1e-5, 0.1])
def test_layernorm(epsilon):
  close(
    apply(LayerNorm(epsilon=epsilon), dict(scale=SCALE, bias=BIAS)), layers.layernorm(X, SCALE, BIAS, epsilon)
  )
  close(
    apply(LayerNorm(epsilon=epsilon, bias=False), dict(scale=SCALE)),
    layers.layernorm(X, SCALE, epsilon=epsilon),
  )


@pytest.mark.parametrize('epsilon', [1e-6, 0.1])
def test_rmsnorm(epsilon):
  close(apply(RMSNorm(epsilon=epsilon), dict(scale=SCALE)), layers.rmsnorm(X, SCALE, epsilon))


def test_dyt():
  alpha = np.array(0.3)
  both = dict(input_scale=alpha, scale=SCALE, bias=BIAS)
  close(apply(DynamicTanh(), both), layers.dyt(X, alpha, SCALE, BIAS))
  close(apply(DynamicTanh(bias=False), dict(input_scale=alpha, scale=SCALE)), layers.dyt(X, alpha, SCALE))
  initial = DynamicTanh(alpha=0.7).init_with_output(jax.random.key(0), jnp.asarray(X, jnp.float32))[0]
  close(initial, np.tanh(0.7 * X))


def test_norms_of_bfloat16_are_computed_in_float32():
  x = jnp.asarray(X, jnp.bfloat16)
  y = apply(LayerNorm(), dict(scale=SCALE, bias=BIAS), x, jnp.bfloat16)
  assert y.dtype == jnp.bfloat16
  exact = layers.layernorm(np.asarray(x.astype(jnp.float32)), SCALE, BIAS)
  np.testing.assert_array_equal(y, jnp.asarray(exact, jnp.float32).astype(jnp.bfloat16))
