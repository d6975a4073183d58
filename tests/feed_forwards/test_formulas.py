"""MLPs against their papers' formulas."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.feed_forwards
from tests.reference import layers
from tfm import spec
from tfm.feed_forwards.protocol import FeedForward
from tfm.layers.initializer import normal


DRAW = np.random.default_rng(0)
X = 3 * DRAW.standard_normal((2, 5, 8)) + 1
KINDS = {
  # In one order always: the draws of a test depend on those before it.
  name: spec.find_variant(name, tfm.feed_forwards, FeedForward)
  for name in sorted(layers.PLAIN | layers.GATED)
}


def close(a, b):
  # A sum of large terms that cancel keeps the rounding of the terms: float32 has 6e-8 of the largest.
  np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 + 1e-6 * np.abs(b).max())


def apply(module, params, x=X, dtype=jnp.float32, **kwargs):
  params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params)
  return module.apply({'params': params}, jnp.asarray(x, dtype), **kwargs)


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('name', KINDS)
def test_feed_forward(name, bias):
  module = KINDS[name](8, 6, bias, normal(1.0), normal(1.0), jnp.float32)
  valid = jnp.ones(X.shape[:2], bool)
  shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(X, jnp.float32), valid))[
    'params'
  ]
  assert set(shapes) == {'up', 'down'} | ({'gate'} if name in layers.GATED else set())
  params = jax.tree.map(lambda x: DRAW.standard_normal(x.shape), shapes)
  linear = {part: (p['kernel'], p.get('bias', 0)) for part, p in params.items()}
  assert all(('bias' in p) == bias for p in params.values())
  close(apply(module, params, valid=valid), layers.feed_forward(name, X, **linear))


def test_known_values():
  """Against the numbers of other implementations (torch.nn.functional, to six digits)."""
  x = np.array([-2.0, -0.5, 0.0, 1.0, 3.0])
  close(layers.gelu(x), [-0.0455003, -0.1542688, 0.0, 0.8413447, 2.9959502])
  close(layers.gelu_tanh(x), [-0.0454023, -0.1542860, 0.0, 0.8411920, 2.9963627])
  close(layers.swish(x), [-0.2384058, -0.1887703, 0.0, 0.7310586, 2.8577224])
