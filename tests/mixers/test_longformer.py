"""Longformer with global projections against the formula, with and without a cache, and its FLOPs."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import longformer, rope
from tests.reference.reading import read
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import collect
from tfm.conformance.tiny import config, decoder
from tfm.mixers.protocol import Context, Memory
from tfm.models import flops


pytestmark = pytest.mark.slow
B, T, D = 3, 10, 16
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((B, T, D))
SEGMENTS = np.array([[1] * 10, [0] * 2 + [1] * 7 + [0], [1] * 4 + [2] * 6])
POSITIONS = np.array([[*range(10)], [0, 9, *range(7), 9], [*range(4), *range(6)]])
REAL = SEGMENTS > 0
WHOLE = np.tile(np.arange(T), (B, 1))
ROTATE = {'rope': rope.rotate, 'none': lambda x, positions: x}


def make_mixer(text='longformer(2)', dropout=0.0, **model):
  c = config(mixer=text, dropout=dict(attention=dropout), **model)
  return assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()


def make_context(part=slice(None), positions=POSITIONS, segments=SEGMENTS, **fields):
  return Context(*(jnp.asarray(x[:, part], jnp.int32) for x in (positions, segments)), **fields)


@functools.cache
def draw_params(bias=True, kv_heads=2):
  module = make_mixer(bias=bias, kv_heads=kv_heads)
  shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((B, T, D)), None, make_context(), None)
  return jax.tree.map(lambda x: 0.5 * DRAW.standard_normal(x.shape), nn.unbox(shapes['params']))


def run(module, params, pieces=None, **fields):
  """y of whole rows, or of pieces through a cache."""
  return read(module, params, X, functools.partial(make_context, **fields), pieces)[0]


def close(y, expected, real=REAL):
  assert np.isfinite(y).all()
  np.testing.assert_allclose(y[real], expected[real], rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
  'n, mask, position, bias, kv_heads',
  [
    (2, 'longformer(1, 2)', 'none', True, 4),
    (1, 'causal & longformer(2, 1)', 'rope', True, 2),
    (20, 'causal', 'rope', False, 1),
    (3, 'full', 'rope', False, 2),
  ],
)
def test_formula(n, mask, position, bias, kv_heads):
  module = make_mixer(f'longformer({n})', mask=mask, position=position, bias=bias, kv_heads=kv_heads)
  params = draw_params(bias, kv_heads)
  expected = longformer.forward(params, X, POSITIONS, SEGMENTS, collect.mask(mask), n, ROTATE[position])
  close(run(module, params), expected)
  if 'causal' in mask:
    close(run(module, params, (1, 5, 1, 3)), expected)


@pytest.mark.parametrize('n', [1, 3, T, T + 4])
def test_contiguous_rows_equal_the_formula(n):
  """Only the first tokens of a row use the global query projection; some of them are padding."""
  segments = np.array([[1] * 10, [0] + [1] * 9, [1] * 7 + [0] * 3])
  mask = 'longformer(1, 2)'
  y = run(
    make_mixer(f'longformer({n})', mask=mask),
    draw_params(),
    positions=WHOLE,
    segments=segments,
    layout='contiguous',
  )
  expected = longformer.forward(draw_params(), X, WHOLE, segments, collect.mask(mask), n, rope.rotate)
  close(y, expected, segments > 0)


@pytest.mark.parametrize('kernel', ['dense', 'chunked(queries=4, keys=3)'])
def test_global_tokens_of_a_prefix(kernel):
  """A prefix marks global tokens anywhere in a row; without a prefix all attention is local."""
  module, is_global = (
    make_mixer('longformer(0)', mask='longformer(1, 0)', kernel=kernel),
    np.zeros((B, T), bool),
  )
  is_global[0, [0, 5, 9]], is_global[1, 4], is_global[2, [2, 9]] = True, True, True
  expected = longformer.forward(
    draw_params(), X, POSITIONS, SEGMENTS, collect.mask('window(1, 1)'), 0, rope.rotate, is_global
  )
  close(run(module, draw_params(), prefix=jnp.where(is_global, POSITIONS + 1, -1)), expected)
  local = longformer.forward(
    draw_params(), X, POSITIONS, SEGMENTS, collect.mask('window(1, 1)'), 0, rope.rotate
  )
  close(run(module, draw_params()), local)
  weights = jax.jit(functools.partial(module.apply, mutable='attention'))(
    {'params': draw_params()},
    jnp.asarray(X, jnp.float32),
    None,
    make_context(prefix=jnp.where(is_global, POSITIONS + 1, -1)),
    None,
  )[1]['attention']['weights']
  assert (np.asarray(weights)[0, :, :, 5] > 0).all() and (np.asarray(weights)[0, :, 5] > 0).all()
  assert (np.asarray(weights)[0, :, 3, 7] == 0).all()


def test_pieces_of_contiguous_rows_equal_the_whole():
  module = make_mixer('longformer(3)', mask='causal & longformer(1, 3)', kernel='chunked(queries=4, keys=3)')
  y = [
    run(module, draw_params(), pieces, positions=WHOLE, segments=WHOLE * 0 + 1, layout='contiguous')
    for pieces in (None, (2, 5, 3))
  ]
  close(y[1], y[0], WHOLE >= 0)


def test_flops_of_contiguous_rows():
  """Six projections and the output's; all queries use the local ones, and n queries the global ones."""
  length, n, H, K, C = 12, 2, 4, 2, 4
  flop_counts = flops.per_token(
    decoder(length, mixer=f'longformer({n})', layers=1, mask='causal'), length
  ).kinds
  assert flop_counts['mixer'] == pytest.approx(2 * D * C * (2 * H + 4 * K + H))
  visible_pairs = length * (length + 1) / 2 + n * (n + 1) / 2
  assert flop_counts['mixer' + flops.PAIRS] == pytest.approx(2 * 2 * visible_pairs / length * H * C)


def test_blockwise_kernel_equals_dense():
  for pieces in (None, (4, 6)):
    blockwise, dense = (
      run(make_mixer(kernel=kernel), draw_params(), pieces)
      for kernel in ('chunked(queries=4, keys=3)', 'dense')
    )
    close(blockwise, dense)


def test_dropout_applies_to_local_and_global_weights_in_training_only():
  module, params = make_mixer(dropout=0.5), {'params': draw_params()}
  x = jnp.asarray(X, jnp.float32)
  without_dropout = module.apply(params, x, None, make_context(), None)[0]
  np.testing.assert_array_equal(without_dropout, make_mixer().apply(params, x, None, make_context(), None)[0])
  with_dropout = module.apply(
    params, x, None, make_context(train=True), None, rngs={'dropout': jax.random.key(0)}
  )[0]
  changed = (with_dropout != without_dropout).any(-1) & REAL
  assert changed[POSITIONS < 2].any() and changed[POSITIONS >= 2].any()


def test_invalid_settings():
  with pytest.raises(ValueError, match=r'config\.model\.mixer=.*global_tokens=-1 must be at least 0'):
    make_mixer('longformer(-1)')
  with pytest.raises(
    ValueError, match=r"mixer='longformer\(0\)' lets tokens attend to later ones whatever the mask"
  ):
    decoder(mixer='longformer(0)')
  with pytest.raises(ValueError, match="leaves out 'global_tokens'"):
    make_mixer('longformer')
  x, params = jnp.asarray(X, jnp.float32), {'params': draw_params()}
  with pytest.raises(ValueError, match="mixer='longformer' does not support cross-attention"):
    make_mixer().apply(params, x, Memory(x, make_context()), make_context(), None)
