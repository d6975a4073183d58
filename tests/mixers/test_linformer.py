"""Linformer against equation 7: short rows, padding anywhere, grouped heads, rotations before the mixing."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.kernels
import tfm.masks
import tfm.mixers
import tfm.positions
import tfm.scores
from tests.reference import linformer, rope
from tfm import spec
from tfm.kernels.protocol import Kernel
from tfm.layers.initializer import normal
from tfm.masks.protocol import Mask
from tfm.mixers.protocol import Context, Memory, Mixer
from tfm.positions.protocol import Position
from tfm.scores.protocol import Score


D, H, K, C, LENGTH, T = 6, 4, 2, 4, 12, 9
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((4, T, D))
SEGMENTS = np.array([[1] * 9, [1] * 6 + [0] * 3, [0] * 3 + [2] * 6, [0] * 9])
# The positions of padding would change the result if they were used.
POSITIONS = np.array([[*range(9)], [*range(6), 0, 3, 11], [700, -1, 4, *range(6)], [5] * 9])


def make_mixer(text='linformer(rank=3)', position='none', bias=True, dropout=0.0, dtype=jnp.float32):
  sizes = dict(width=D, heads=H, head_width=C)
  return spec.factory(
    text,
    tfm.mixers,
    Mixer,
    **sizes,
    kv_heads=K,
    bias=bias,
    dropout=dropout,
    initializer=normal(1.0),
    output_initializer=normal(1.0),
    dtype=dtype,
    position=spec.factory(position, tfm.positions, Position, length=LENGTH, **sizes),
    score=spec.factory('dot', tfm.scores, Score, head_width=C),
    mask=spec.build('full', tfm.masks, Mask),
    kernel=spec.build('dense', tfm.kernels, Kernel),
  )()


def make_context(segments=SEGMENTS, positions=POSITIONS, **fields):
  return Context(jnp.asarray(positions, jnp.int32), jnp.asarray(segments, jnp.int32), **fields)


@functools.cache
def draw_params(bias=True):
  module = make_mixer(bias=bias)
  inputs = jnp.asarray(X, jnp.float32), None, make_context(), None
  shapes = nn.unbox(jax.eval_shape(module.init, jax.random.key(0), *inputs))['params']
  return jax.tree.map(lambda p: jnp.asarray(0.5 * DRAW.standard_normal(p.shape), jnp.float32), shapes)


def run(module, x, context, **rngs):
  params = {'params': draw_params(module.bias)}
  y, cache = jax.jit(module.apply)(params, jnp.asarray(x, module.dtype), None, context, None, rngs=rngs)
  assert cache is None
  return y


def formula(x, segments, positions, bias=True, rotated=False):
  params = jax.tree.map(lambda p: np.asarray(p, np.float64), draw_params(bias))

  def project(name, equation, x):
    return np.einsum(equation, x, params[name]['kernel']) + params[name].get('bias', 0)

  q, k, v = (project(name, 'btd,dhc->bthc', x) for name in 'qkv')
  if rotated:
    q, k = rope.rotate(q, positions), rope.rotate(k, positions)
  y = linformer.attend(q, k, v, params['E'], params['F'], positions, segments)
  return project('out', 'bthc,hcd->btd', y)


@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('position', ['none', 'rope'])
def test_formula(position, bias):
  assert draw_params(bias)['E'].shape == draw_params(bias)['F'].shape == (LENGTH, 3)
  y = run(make_mixer(position=position, bias=bias), X, make_context())
  expected = formula(X, SEGMENTS, POSITIONS, bias, rotated=position == 'rope')
  assert np.isfinite(y).all()
  np.testing.assert_allclose(y[SEGMENTS > 0], expected[SEGMENTS > 0], rtol=2e-5, atol=2e-5)


def test_contiguous_layout_equals_arbitrary():
  """Padding in front keeps its place; the positions of a contiguous row are its indices."""
  at = np.tile(np.arange(T), (4, 1))
  y = [
    run(make_mixer(), X, make_context(positions=at, layout=layout)) for layout in ('contiguous', 'arbitrary')
  ]
  np.testing.assert_allclose(y[0], y[1], rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(y[0][SEGMENTS > 0], formula(X, SEGMENTS, at)[SEGMENTS > 0], rtol=2e-5, atol=2e-5)


def test_every_token_influences_every_other_and_padding_none():
  influence = jax.jit(jax.jacobian(lambda x: run(make_mixer(), x, make_context()).sum(-1)))(
    jnp.asarray(X, jnp.float32)
  )
  for row, real in enumerate(SEGMENTS > 0):
    by_source = np.abs(influence[row, :, row]).max(-1)
    np.testing.assert_array_equal(by_source > 0, real[:, None] & real[None, :])


def test_dropout_applies_to_the_weights_in_training_only():
  module = make_mixer(dropout=0.5)
  without_dropout = run(make_mixer(), X, make_context())
  np.testing.assert_array_equal(run(module, X, make_context()), without_dropout)
  assert (run(module, X, make_context(train=True), dropout=jax.random.key(0)) != without_dropout)[
    SEGMENTS > 0
  ].any()


def test_bfloat16():
  y = run(make_mixer(dtype=jnp.bfloat16), X, make_context())
  expected = formula(X, SEGMENTS, POSITIONS)
  assert y.dtype == jnp.bfloat16
  np.testing.assert_allclose(
    y.astype(jnp.float32)[SEGMENTS > 0], expected[SEGMENTS > 0], atol=0.05 * np.abs(expected).max()
  )


def test_invalid_settings():
  with pytest.raises(ValueError, match='rank=0 must be at least 1'):
    make_mixer('linformer(rank=0)')
  with pytest.raises(ValueError, match="leaves out 'rank'"):
    make_mixer('linformer')
  with pytest.raises(ValueError, match='cannot decode with a cache'):
    make_mixer().init_cache(2, 12)
  x, params = jnp.asarray(X, jnp.float32), {'params': draw_params()}
  with pytest.raises(ValueError, match="mixer='linformer' does not support cross-attention"):
    make_mixer().apply(params, x, Memory(x, make_context()), make_context(), None)
  with pytest.raises(ValueError, match='cannot decode with a cache'):
    make_mixer().apply(params, x, None, make_context(), 'a cache')
  long = jnp.zeros((1, LENGTH + 1, D))
  with pytest.raises(ValueError, match='projects at most 12 tokens, and the row has 13'):
    make_mixer().apply(params, long, None, Context.contiguous(long[..., 0]), None)
