"""The mixer with global projections against the formula, in both forms, and what it spares in whole rows."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance import collect
from tests.conformance.tiny import config, decoder
from tests.reference import longformer, rope
from tests.reference.reading import read
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.mixers.protocol import Context, Memory
from tfm.models import flops


B, T, D = 3, 10, 16
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((B, T, D))
SEGMENTS = np.array([[1] * 10, [0] * 2 + [1] * 7 + [0], [1] * 4 + [2] * 6])
POSITIONS = np.array([[*range(10)], [0, 9, *range(7), 9], [*range(4), *range(6)]])
REAL = SEGMENTS > 0
WHOLE = np.tile(np.arange(T), (B, 1))
ROTATE = {'rope': rope.rotate, 'none': lambda x, positions: x}


def mixer(text='longformer(2)', dropout=0.0, **model):
  c = config(mixer=text, dropout=dict(attention=dropout), **model)
  return assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()


def context(part=slice(None), positions=POSITIONS, segments=SEGMENTS, **fields):
  return Context(*(jnp.asarray(x[:, part], jnp.int32) for x in (positions, segments)), **fields)


@functools.cache
def parameters(bias=True, kv_heads=2):
  module = mixer(bias=bias, kv_heads=kv_heads)
  shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((B, T, D)), None, context(), None)
  return jax.tree.map(lambda x: 0.5 * DRAW.standard_normal(x.shape), nn.unbox(shapes['params']))


def run(result, params, pieces=None, **fields):
  """y of all at once, or read through a cache in pieces."""
  return read(result, params, X, functools.partial(context, **fields), pieces)[0]


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
  module = mixer(f'longformer({n})', mask=mask, position=position, bias=bias, kv_heads=kv_heads)
  params = parameters(bias, kv_heads)
  expected = longformer.forward(params, X, POSITIONS, SEGMENTS, collect.mask(mask), n, ROTATE[position])
  close(run(module, params), expected)
  if 'causal' in mask:
    close(run(module, params, (1, 5, 1, 3)), expected)


@pytest.mark.parametrize('n', [1, 3, T, T + 4])
def test_whole_rows_give_the_same(n):
  """Only their first tokens ask with the global projections; padding may stand among them."""
  segments = np.array([[1] * 10, [0] + [1] * 9, [1] * 7 + [0] * 3])
  mask = 'longformer(1, 2)'
  y = run(
    mixer(f'longformer({n})', mask=mask),
    parameters(),
    positions=WHOLE,
    segments=segments,
    layout='contiguous',
  )
  expected = longformer.forward(parameters(), X, WHOLE, segments, collect.mask(mask), n, rope.rotate)
  close(y, expected, segments > 0)


@pytest.mark.parametrize('kernel', ['dense', 'chunked(queries=4, keys=3)'])
def test_global_tokens_that_are_told(kernel):
  """Wherever they stand; and where none is told, all is local."""
  module, reported = mixer('longformer(0)', mask='longformer(1, 0)', kernel=kernel), np.zeros((B, T), bool)
  reported[0, [0, 5, 9]], reported[1, 4], reported[2, [2, 9]] = True, True, True
  expected = longformer.forward(
    parameters(), X, POSITIONS, SEGMENTS, collect.mask('window(1, 1)'), 0, rope.rotate, reported
  )
  close(run(module, parameters(), prefix=jnp.where(reported, POSITIONS + 1, -1)), expected)
  local = longformer.forward(
    parameters(), X, POSITIONS, SEGMENTS, collect.mask('window(1, 1)'), 0, rope.rotate
  )
  close(run(module, parameters()), local)
  weights = jax.jit(functools.partial(module.apply, mutable='attention'))(
    {'params': parameters()},
    jnp.asarray(X, jnp.float32),
    None,
    context(prefix=jnp.where(reported, POSITIONS + 1, -1)),
    None,
  )[1]['attention']['weights']
  assert (np.asarray(weights)[0, :, :, 5] > 0).all() and (np.asarray(weights)[0, :, 5] > 0).all()
  assert (np.asarray(weights)[0, :, 3, 7] == 0).all()


def test_what_is_read_piece_by_piece_is_no_whole_row():
  module = mixer('longformer(3)', mask='causal & longformer(1, 3)', kernel='chunked(queries=4, keys=3)')
  y = [
    run(module, parameters(), pieces, positions=WHOLE, segments=WHOLE * 0 + 1, layout='contiguous')
    for pieces in (None, (2, 5, 3))
  ]
  close(y[1], y[0], WHOLE >= 0)


def test_flops_of_whole_rows():
  """Six projections and one; all queries ask by the local ones, and n by the global ones."""
  length, n, H, K, C = 12, 2, 4, 2, 4
  counted = flops.per_token(decoder(length, mixer=f'longformer({n})', layers=1, mask='causal'), length).kinds
  assert counted['mixer'] == pytest.approx(2 * D * C * (2 * H + 4 * K + H))
  seen = length * (length + 1) / 2 + n * (n + 1) / 2
  assert counted['mixer' + flops.PAIRS] == pytest.approx(2 * 2 * seen / length * H * C)


def test_a_blockwise_kernel_gives_the_same():
  for pieces in (None, (4, 6)):
    blockwise, dense = (
      run(mixer(kernel=kernel), parameters(), pieces) for kernel in ('chunked(queries=4, keys=3)', 'dense')
    )
    close(blockwise, dense)


def test_dropout_is_on_the_weights_of_both_in_training_only():
  module, params = mixer(dropout=0.5), {'params': parameters()}
  x = jnp.asarray(X, jnp.float32)
  quiet = module.apply(params, x, None, context(), None)[0]
  np.testing.assert_array_equal(quiet, mixer().apply(params, x, None, context(), None)[0])
  loud = module.apply(params, x, None, context(train=True), None, rngs={'dropout': jax.random.key(0)})[0]
  changed = (loud != quiet).any(-1) & REAL
  assert changed[POSITIONS < 2].any() and changed[POSITIONS >= 2].any()


def test_refusals():
  with pytest.raises(ValueError, match=r'config\.model\.mixer=.*global_tokens=-1 must be 1 or more, or 0'):
    mixer('longformer(-1)')
  with pytest.raises(
    ValueError, match=r"mixer='longformer\(0\)' lets tokens attend to later ones whatever the mask"
  ):
    decoder(mixer='longformer(0)')
  with pytest.raises(ValueError, match="leaves out 'global_tokens'"):
    mixer('longformer')
  x, params = jnp.asarray(X, jnp.float32), {'params': parameters()}
  with pytest.raises(ValueError, match="mixer='longformer' does not support cross-attention"):
    mixer().apply(params, x, Memory(x, context()), context(), None)
