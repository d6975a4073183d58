"""Gated convolutions against the formula: documents, padding within them, and what a cache holds."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.mixers
from tests.reference import convolution
from tfm import spec
from tfm.layers.initializer import normal
from tfm.mixers.protocol import Context, Memory, Mixer


D = 6
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((3, 12, D))
# Padding left, right and between documents; a whole row; one of padding only.
UNBROKEN = np.array([[0, 1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0], [1] * 12, [0] * 12])
# Within documents too.
BROKEN = np.array([[0, 1, 0, 1, 1, 0, 0, 2, 2, 0, 2, 2], [1, 1, 0, 0, 1, 1, 1, 0, 1, 3, 3, 3], [2, 0] * 6])
STACKS = [(3, (1, 2, 4)), (2, (3, 1)), (2, (20,))]  # the last looks back farther than any row


def make_mixer(taps=3, dilations=(1, 2, 4), bias=True, dtype=jnp.float32, dropout=0.0):
  return spec.factory(
    f'convolution({taps!r}, {dilations!r})',
    tfm.mixers,
    Mixer,
    width=D,
    heads=2,
    kv_heads=2,
    head_width=3,
    bias=bias,
    dropout=dropout,
    initializer=normal(1.0),
    output_initializer=normal(1.0),
    dtype=dtype,
  )()


def make_context(segments, layout='arbitrary'):
  segments = jnp.asarray(segments, jnp.int32)
  return Context(jnp.zeros_like(segments), segments, layout=layout)  # the mixer reads no positions


def draw_params(module):
  inputs = jnp.asarray(X, jnp.float32), None, make_context(BROKEN), None
  shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), *inputs))['params']
  return jax.tree.map(lambda p: 0.3 * DRAW.standard_normal(p.shape), shapes)


def run(module, params, segments, x=X, cache=None, layout='arbitrary'):
  params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params)
  return jax.jit(module.apply)(
    {'params': params}, jnp.asarray(x, module.dtype), None, make_context(segments, layout), cache
  )


def formula(module, params, segments):
  def part(name):
    return params[name]['kernel'], params[name].get('bias', 0.0)

  layers = [(d, *part(f'value_{i}'), *part(f'gate_{i}')) for i, d in enumerate(module.dilations)]
  kernel, bias = part('out')
  return convolution.gated(X, layers, segments) @ kernel + bias


def close(y, expected, segments):
  assert np.isfinite(y).all()
  np.testing.assert_allclose(np.asarray(y)[segments > 0], expected[segments > 0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('stack', STACKS, ids=str)
@pytest.mark.parametrize(
  'segments, layout', [(UNBROKEN, 'packed'), (UNBROKEN, 'arbitrary'), (BROKEN, 'arbitrary')]
)
def test_formula(stack, segments, layout, bias):
  module = make_mixer(*stack, bias=bias)
  params = draw_params(module)
  assert len(params) == 2 * len(stack[1]) + 1
  y, cache = run(module, params, segments, layout=layout)
  assert cache is None
  close(y, formula(module, params, segments), segments)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
  'ends',
  [
    (1, 2, 3, 9, 12),
    *(pytest.param(ends, marks=pytest.mark.slow) for ends in ((5, 12), tuple(range(1, 13)))),
  ],
  ids=str,
)
@pytest.mark.parametrize('stack', STACKS, ids=str)
@pytest.mark.parametrize('segments', [UNBROKEN, BROKEN], ids=['unbroken', 'broken'])
def test_pieces_through_a_cache(stack, segments, ends):
  module = make_mixer(*stack)
  params = draw_params(module)
  cache, outputs = module.init_cache(len(X), 12), []
  for start, stop in zip((0, *ends), ends):
    # The layout of a piece says nothing about the cached tokens.
    y, cache = run(module, params, segments[:, start:stop], X[:, start:stop], cache, layout='packed')
    outputs.append(y)
  close(np.concatenate(outputs, 1), formula(module, params, segments), segments)


def test_cache_holds_real_tokens_only():
  module = make_mixer(3, (1, 2))
  params = draw_params(module)
  _, cache = run(module, params, BROKEN, cache=module.init_cache(len(X), 12))
  # The input of the first layer is x itself.
  for row, real in enumerate(BROKEN > 0):
    np.testing.assert_allclose(cache.inputs[0][row], X[row, real][-2:], rtol=1e-6)
  np.testing.assert_array_equal(cache.segments, [[2, 2, 2, 2], [1, 3, 3, 3], [2, 2, 2, 2]])
  _, after = run(module, params, 0 * BROKEN, cache=cache)
  jax.tree.map(np.testing.assert_array_equal, after, cache)


def test_bfloat16():
  module = make_mixer(dtype=jnp.bfloat16)
  params = draw_params(module)
  y, cache = run(module, params, BROKEN, cache=module.init_cache(len(X), 12))
  assert y.dtype == jnp.bfloat16 and {x.dtype for x in cache.inputs} == {jnp.dtype('bfloat16')}
  expected = formula(module, params, BROKEN)
  np.testing.assert_allclose(
    y.astype(jnp.float32)[BROKEN > 0], expected[BROKEN > 0], atol=0.03 * np.abs(expected).max()
  )


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(taps=1), 'taps=1 must be at least 2'),
    (dict(dilations=()), r'dilations=\(\) must have one number per layer'),
    (dict(dilations=2), r'dilations=2 must be of type tuple\[int, ...\]'),
    (dict(dilations=(1, 0)), r'dilations=\(1, 0\) has an entry that must be at least 1'),
    (dict(dilations=(1, 2.0)), r'dilations=\(1, 2.0\) has an entry that must be of type int'),
    (dict(dropout=0.1), 'dropout.attention=0.1 drops mixing weights, which a convolution does not have'),
  ],
)
def test_invalid_settings(fields, message):
  with pytest.raises(ValueError, match=message):
    make_mixer(**fields)


def test_rejects_cross_attention():
  module = make_mixer()
  x = jnp.asarray(X, jnp.float32)
  with pytest.raises(ValueError, match="mixer='convolution' does not support cross-attention"):
    module.apply(
      {'params': draw_params(module)}, x, Memory(x, make_context(BROKEN)), make_context(BROKEN), None
    )
