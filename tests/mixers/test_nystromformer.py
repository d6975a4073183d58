"""Nyströmformer against its formula: pieces of equal and unequal length, short rows, padding anywhere."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import nystromformer, rope
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance.tiny import config
from tfm.mixers.nystromformer import invert
from tfm.mixers.protocol import Context, Memory


D, H, C, T = 16, 4, 4, 9
X = np.random.default_rng(0).standard_normal((5, T, D))
SEGMENTS = np.array([[1] * 9, [1] * 6 + [0] * 3, [0] * 3 + [2] * 6, [0] + [1] * 2 + [0] * 6, [0] * 9])
POSITIONS = np.array([[*range(9)], [*range(6), 0, 3, 8], [7, 1, 4, *range(6)], [5, 0, 1, *range(6)], [5] * 9])
REAL = SEGMENTS > 0


def make_mixer(text, **model):
  c = config(mixer=text, mask='full', **model)
  return assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()


def make_context():
  return Context(jnp.asarray(POSITIONS, jnp.int32), jnp.asarray(SEGMENTS, jnp.int32))


def draw_params(module, scale=0.3):
  draw = np.random.default_rng(1)
  shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.asarray(X), None, make_context(), None)
  return jax.tree.map(lambda x: scale * draw.standard_normal(x.shape), nn.unbox(shapes['params']))


def apply(module, params):
  params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
  return module.apply({'params': params}, jnp.asarray(X, jnp.float32), None, make_context(), None)[0]


@pytest.mark.parametrize('landmarks', [1, 3, 20])
@pytest.mark.parametrize('position, taps', [('none', 0), ('rope', 3)])
def test_formula(position, taps, landmarks):
  """Of 20 landmarks there are as many as tokens."""
  module = make_mixer(f'nystromformer({landmarks}, taps={taps})', position=position)
  params = draw_params(module)
  q, k, v = (np.einsum('btd,dhc->bthc', X, params[name]['kernel']) + params[name]['bias'] for name in 'qkv')
  if position == 'rope':
    q, k = rope.rotate(q, POSITIONS), rope.rotate(k, POSITIONS)
  y = nystromformer.attend(q, k, v, landmarks, SEGMENTS, 6, params.get('taps'))
  y = np.einsum('bthc,hcd->btd', y, params['out']['kernel']) + params['out']['bias']
  found = np.asarray(jax.jit(lambda params: apply(module, params))(params))
  assert np.isfinite(found).all()
  np.testing.assert_allclose(found[REAL], y[REAL], rtol=2e-5, atol=2e-5 * np.abs(y).max())


def test_the_iteration_converges_to_the_pseudoinverse():
  """Of matrices with a row and a column of zeros, where a landmark does not exist."""
  logits = np.random.default_rng(2).standard_normal((2, 3, 5, 5)) + 3 * np.eye(5)
  matrix = nystromformer.softmax(logits)
  matrix[..., -1, :] = matrix[..., :, -1] = 0
  np.testing.assert_allclose(invert(jnp.asarray(matrix, jnp.float32), 12), np.linalg.pinv(matrix), atol=2e-5)


@pytest.mark.parametrize(
  'text, model, message',
  [
    ('nystromformer(3, taps=4)', dict(), 'taps=4 has no middle'),
    ('nystromformer(3)', dict(dropout=dict(attention=0.1)), 'drops mixing weights'),
  ],
)
def test_invalid_settings(text, model, message):
  with pytest.raises(ValueError, match=message):
    make_mixer(text, **model)


def test_rejects_a_memory_and_a_cache():
  module = make_mixer('nystromformer(3)')
  params, x = {'params': draw_params(module)}, jnp.asarray(X, jnp.float32)
  with pytest.raises(ValueError, match="mixer='nystromformer' does not support cross-attention"):
    module.apply(params, x, Memory(x, make_context()), make_context(), None)
  with pytest.raises(ValueError, match="'nystromformer' averages all tokens .* cannot decode with a cache"):
    module.init_cache(2, 4)
