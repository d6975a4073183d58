"""The linear layer: contraction, bias, data types, and the fans of its initializers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.layers.initializer import normal, xavier_uniform
from tfm.layers.linear import Linear


X = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 4, 5)), jnp.float32)


def init_linear(x, *args, **kwargs):
  """(layer, unboxed parameters, boxes)."""
  layer = Linear(*args, initializer=normal(1.0), **kwargs)
  boxes = layer.init(jax.random.key(0), x)['params']
  return layer, {name: box.value for name, box in boxes.items()}, boxes


@pytest.mark.parametrize(
  'shape, axes, contracted, einsum',
  [
    ((5, 6), ('embed', 'mlp'), 1, 'abcd,de->abce'),
    ((5, 6, 7), ('embed', 'heads', 'kv'), 1, 'abcd,def->abcef'),
    ((4, 5, 6), ('heads', 'kv', 'embed'), 2, 'abcd,cde->abe'),
    ((4, 5, 6, 7), ('heads', 'kv', 'embed', 'mlp'), 2, 'abcd,cdef->abef'),
  ],
)
def test_contracts_the_last_axes_with_the_first(shape, axes, contracted, einsum):
  layer, params, boxes = init_linear(X, shape, axes, contracted_axes=contracted)
  assert params['kernel'].shape == shape and boxes['kernel'].names == axes
  assert params['bias'].shape == shape[contracted:] and boxes['bias'].names == axes[contracted:]
  bias = jnp.arange(params['bias'].size, dtype=jnp.float32).reshape(params['bias'].shape)
  y = layer.apply({'params': dict(params, bias=bias)}, X)
  expected = np.einsum(einsum, X, params['kernel']) + np.asarray(bias)
  np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_bias_starts_at_zero_or_is_absent():
  _, params, _ = init_linear(X, (5, 6), ('embed', 'mlp'))
  assert not params['bias'].any()
  layer, params, _ = init_linear(X, (5, 6), ('embed', 'mlp'), bias=False)
  assert set(params) == {'kernel'}
  assert not layer.apply({'params': params}, jnp.zeros_like(X)).any()


def test_bfloat16_layer_has_float32_parameters():
  layer, params, _ = init_linear(X, (5, 6), ('embed', 'mlp'), dtype=jnp.bfloat16)
  assert all(p.dtype == jnp.float32 for p in params.values())
  assert layer.apply({'params': params}, X).dtype == jnp.bfloat16


def test_rejects_mismatched_shapes_and_axes():
  with pytest.raises(ValueError, match=r'Linear contracts \(4,\) and the input ends in \(5,\)'):
    init_linear(X, (4, 6), ('embed', 'mlp'))
  with pytest.raises(ValueError, match='not a logical axis'):
    init_linear(X, (5, 6), ('embed', 'mpl'))
  with pytest.raises(ValueError, match='give one per dimension'):
    init_linear(X, (5, 6, 7), ('embed', 'mlp'))


@pytest.mark.parametrize('shape, contracted', [((30, 8, 10), 1), ((8, 10, 30), 2)])
def test_fans_are_those_of_the_contraction_at_any_rank(shape, contracted):
  """A projection to 8 heads of 10 channels has 80 outputs, and the one back 80 inputs."""
  x = jnp.zeros((1, *shape[:contracted]))
  layer = Linear(
    shape,
    ('embed', 'heads', 'kv') if contracted == 1 else ('heads', 'kv', 'embed'),
    xavier_uniform(),
    contracted,
  )
  kernel = layer.init(jax.random.key(0), x)['params']['kernel'].value
  bound = (6 / (30 + 80)) ** 0.5
  assert 0.98 * bound < jnp.abs(kernel).max() <= bound
