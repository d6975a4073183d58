"""Kinds of attention against their papers' formulas, over rows of documents and padding, read whole and
through a cache.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import attention_kinds as oracle
from tests.reference.reading import read
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import attention
from tfm.conformance.tiny import config
from tfm.mixers.protocol import Context


B, T, D, H, C = 4, 10, 16, 4, 4
# One document; padding around one; two documents; two that padding interrupts.
SEGMENTS = np.array(
  [[1] * 10, [0] * 2 + [1] * 7 + [0], [1] * 4 + [2] * 6, [1] * 3 + [0] + [1] * 2 + [2] * 2 + [0] + [2]]
)
POSITIONS = np.array(
  [[*range(10)], [0, 9, *range(7), 9], [*range(4), *range(6)], [0, 1, 2, 7, 3, 4, 0, 1, 7, 2]]
)
REAL = SEGMENTS > 0
X = np.random.default_rng(0).standard_normal((B, T, D))


def make_mixer(text, **model):
  c = config(mixer=text, **dict(position='none') | model)
  return assemble.build_block(Experiment(c), 'model', c.model, causal=True)().mixer()


def make_context(part=slice(None)):
  return Context(*(jnp.asarray(x[:, part], jnp.int32) for x in (POSITIONS, SEGMENTS)))


def draw_params(module):
  """All parameters are random, so that no error hides behind a zero or a one."""
  draw = np.random.default_rng(1)
  shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((B, T, D)), None, make_context(), None)
  return jax.tree.map(lambda x: 0.5 * draw.standard_normal(x.shape), nn.unbox(shapes['params']))


CASES = [
  ('gated', dict(), oracle.gated),
  ('gated', dict(kv_heads=1, bias=False), oracle.gated),
  ('differential', dict(), functools.partial(oracle.differential, start=0.8)),
  ('differential(initial_lambda=0.3)', dict(kv_heads=4), functools.partial(oracle.differential, start=0.3)),
  ('forgetting', dict(), oracle.forgetting),
  ('forgetting', dict(kv_heads=1, kernel='chunked(queries=4, keys=5)'), oracle.forgetting),
  ('talking_heads', dict(), oracle.talking_heads),
  (
    'multi_token(queries=3, keys=4)',
    dict(),
    functools.partial(oracle.multi_token, queries=3, keys=4, group=2),
  ),
  (
    'multi_token(queries=1, keys=5, group=4)',
    dict(kv_heads=1, bias=False),
    functools.partial(oracle.multi_token, queries=1, keys=5, group=4),
  ),
  ('selective', dict(), oracle.selective),
  ('selective', dict(kv_heads=1, bias=False), oracle.selective),
  ('stick_breaking', dict(), oracle.stick_breaking),
  ('stick_breaking', dict(kv_heads=1, bias=False), oracle.stick_breaking),
  ('path', dict(), oracle.path),
  ('path', dict(kv_heads=2, bias=False), oracle.path),
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize('pieces', [None, (1, 3, 1, 4, 1)], ids=['whole', 'cached'])
@pytest.mark.parametrize('text, model, forward', CASES, ids=lambda x: str(x) if isinstance(x, str) else '')
def test_formula(text, model, forward, pieces):
  module = make_mixer(text, **model)
  params = draw_params(module)
  visible = attention.seen(lambda q, k: k <= q, POSITIONS, POSITIONS, SEGMENTS, SEGMENTS)
  heads = forward(params, X, visible)
  expected = np.einsum('bthc,hcd->btd', heads, params['out']['kernel']) + params['out'].get('bias', 0)
  y, _ = read(module, params, X, make_context, pieces)
  assert np.isfinite(y).all()
  np.testing.assert_allclose(y[REAL], expected[REAL], rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.sampled(4)
@pytest.mark.parametrize('pieces', [None, (1, 3, 1, 4, 1)], ids=['whole', 'cached'])
@pytest.mark.parametrize('text', dict.fromkeys(text for text, _, _ in CASES))
def test_bfloat16(text, pieces):
  """Within the eight bits of activations; sums over tokens, in logits, are in float32."""
  params = draw_params(make_mixer(text))
  exact, _ = read(make_mixer(text), params, X, make_context)
  y, _ = read(make_mixer(text, dtype='bfloat16'), params, X, make_context, pieces)
  assert y.dtype == jnp.bfloat16
  error = np.abs(y.astype(np.float32) - exact)[REAL]
  assert error.max() < 0.03 * np.abs(exact[REAL]).max() and error.mean() < 0.005 * np.abs(exact[REAL]).max()


@pytest.mark.parametrize(
  'text, model, message',
  [
    ('differential', dict(kv_heads=1), r'kv_heads=1 must be even: differential attention subtracts'),
    ('differential(initial_lambda=1.0)', dict(), 'initial_lambda=1.0'),
    ('multi_token(group=3)', dict(), 'group=3 must divide heads=4'),
  ],
)
def test_invalid_settings(text, model, message):
  with pytest.raises(ValueError, match=message):
    make_mixer(text, **model)


@pytest.mark.parametrize('text', ['multi_token', 'path', 'selective', 'stick_breaking', 'talking_heads'])
@pytest.mark.parametrize('kernel', ['chunked', 'ring'])
def test_blockwise_kernels_are_refused(text, kernel):
  module = make_mixer(text, kernel=kernel)
  with pytest.raises(
    ValueError, match=f"kernel='{kernel}' cannot be used: the mixer needs whole rows of logits"
  ):
    jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((B, T, D)), None, make_context(), None)


def test_the_gate_has_a_bias_where_queries_have():
  params = draw_params(make_mixer('gated(biases="qo")'))
  assert {name for name in params if 'bias' in params[name]} == {'q', 'gate', 'out'}
