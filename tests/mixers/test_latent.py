"""Latent attention against the paper's equations, with keys computed and with keys absorbed in queries."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import latent, rope
from tests.reference.reading import read
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import collect
from tfm.conformance.tiny import config, decoder
from tfm.mixers.protocol import Context, Memory
from tfm.models import flops


B, T, D, H, C = 3, 10, 16, 4, 4
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((B, T, D))
SEGMENTS = np.array([[1] * 10, [0] * 2 + [1] * 7 + [0], [1] * 4 + [2] * 6])
POSITIONS = np.array([[*range(10)], [9, 9, *range(7), 9], [*range(4), *range(6)]])
REAL = SEGMENTS > 0
WHOLE = np.tile(np.arange(T), (B, 1))
SPECS = (
  'latent(rank=8, rope_width=6)',
  'latent(rank=5, rope_width=2, query_rank=7)',
  'latent(rank=8, rope_width=2, value_width=3)',
)
ROTATE = {'rope': rope.rotate, 'none': lambda x, positions: x}


def make_mixer(text=SPECS[0], dropout=0.0, **model):
  c = config(mixer=text, dropout=dict(attention=dropout), **model)
  return assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()


def make_context(part=slice(None), positions=POSITIONS, segments=SEGMENTS, **fields):
  return Context(*(jnp.asarray(x[:, part], jnp.int32) for x in (positions, segments)), **fields)


@functools.cache
def draw_params(text, bias=True):
  module = make_mixer(text, bias=bias)
  shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((B, T, D)), None, make_context(), None)
  return jax.tree.map(lambda x: 0.5 + 0.5 * DRAW.standard_normal(x.shape), nn.unbox(shapes['params']))


def run(module, params, pieces=None, **fields):
  """(y, cache) of whole rows, or of pieces through a cache."""
  return read(module, params, X, functools.partial(make_context, **fields), pieces)


def close(y, expected):
  assert np.isfinite(y).all()
  np.testing.assert_allclose(y[REAL], expected[REAL], rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.sampled(3)
@pytest.mark.parametrize('text', SPECS)
@pytest.mark.parametrize(
  'position, mask, bias',
  [('rope', 'causal', True), ('rope', 'causal & window(2)', False), ('none', 'full', True)],
)
def test_formula(text, position, mask, bias):
  module, params = make_mixer(text, position=position, mask=mask, bias=bias), draw_params(text, bias)
  expected = latent.forward(params, X, POSITIONS, SEGMENTS, collect.mask(mask), ROTATE[position])
  close(run(module, params)[0], expected)
  if mask != 'full':
    close(run(module, params, (4, 1, 5))[0], expected)


@pytest.mark.parametrize('text', SPECS)
def test_cache_holds_the_latent_and_the_rotated_key(text):
  module = make_mixer(text)
  _, cache = run(module, draw_params(text), (T,))
  channels = module.rank + module.rope_width
  assert {name: x.shape for name, x in cache.arrays.items()} == {'latent': (B, 1, T + 2, channels)}


@pytest.mark.slow
def test_pieces_of_contiguous_rows_equal_the_whole():
  """For contiguous rows a blockwise kernel takes indices as positions."""
  module = make_mixer(kernel='chunked(queries=4, keys=3)')
  at = dict(layout='contiguous', positions=WHOLE, segments=WHOLE * 0 + 1)
  whole, from_pieces = (run(module, draw_params(SPECS[0]), pieces, **at)[0] for pieces in (None, (2, 5, 3)))
  np.testing.assert_allclose(from_pieces, whole, rtol=2e-5, atol=2e-5 * np.abs(whole).max())


def test_up_projections_have_no_bias():
  for text, expected in zip(
    SPECS, ({'down', 'q', 'out'}, {'down', 'q_down', 'out'}, {'down', 'q', 'out'}), strict=True
  ):
    leaves = jax.tree_util.tree_leaves_with_path(draw_params(text))
    assert {path[0].key for path, _ in leaves if path[-1].key == 'bias'} == expected


def test_position_biases_apply_in_both_forms():
  module, params = make_mixer(position='alibi'), draw_params(SPECS[0])
  whole, _ = run(module, params)
  close(run(module, params, (4, 1, 5))[0], whole)
  assert (np.abs(whole - run(make_mixer(position='none'), params)[0]) > 1e-3)[REAL].any()


@pytest.mark.parametrize('pieces', [None, (4, 6)])
def test_blockwise_kernel_supports_another_value_width(pieces):
  params = draw_params(SPECS[0])
  blockwise, dense = (make_mixer(kernel=kernel) for kernel in ('chunked(queries=4, keys=3)', 'dense'))
  close(run(blockwise, params, pieces)[0], run(dense, params, pieces)[0])


def test_scale_applies_in_both_forms():
  module, params = make_mixer(score='dot(scale=0.1)'), draw_params(SPECS[0])
  whole, _ = run(module, params)
  close(run(module, params, (4, 6))[0], whole)
  assert np.abs(whole - run(make_mixer(), params)[0])[REAL].max() > 1e-3


def test_bfloat16():
  params = draw_params(SPECS[0])
  expected = latent.forward(params, X, POSITIONS, SEGMENTS, collect.mask('causal'), rope.rotate)
  for pieces in (None, (4, 6)):
    y, _ = run(make_mixer(dtype='bfloat16'), params, pieces)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y[REAL].astype(float), expected[REAL], atol=0.05 * np.abs(expected).max())


@pytest.mark.slow
def test_dropout_applies_to_the_weights_in_training_only():
  module, params = make_mixer(dropout=0.5), {'params': draw_params(SPECS[0])}
  x = jnp.asarray(X, jnp.float32)
  without_dropout = module.apply(params, x, None, make_context(), None)[0]
  np.testing.assert_array_equal(without_dropout, make_mixer().apply(params, x, None, make_context(), None)[0])
  with_dropout = module.apply(
    params, x, None, make_context(train=True), None, rngs={'dropout': jax.random.key(0)}
  )[0]
  assert (with_dropout != without_dropout)[REAL].any()


@pytest.mark.parametrize(
  'text, value_width',
  [('latent(rank=8, rope_width=6)', C), ('latent(rank=8, rope_width=6, value_width=7)', 7)],
)
def test_training_flops(text, value_width):
  rank, rope_width, length = 8, 6, 12
  flop_counts = flops.per_token(decoder(length, mixer=text, layers=1), length).kinds
  projections = (
    D * H * (C + rope_width) + D * (rank + rope_width) + rank * H * (C + value_width) + H * value_width * D
  )
  assert flop_counts['mixer'] == pytest.approx(2 * projections)
  pairs = (length + 1) / 2 * H * (C + rope_width + value_width)
  assert flop_counts['mixer' + flops.PAIRS] == pytest.approx(2 * pairs)


def test_invalid_settings():
  for text, message in (
    ('latent(rank=0, rope_width=2)', 'rank=0 must be at least 1'),
    ('latent(rank=4, rope_width=0)', 'rope_width=0 must be at least 1'),
    ('latent(rank=4, rope_width=2, query_rank=-1)', 'query_rank=-1 must be at least 0'),
    ('latent(rank=4, rope_width=2, value_width=-1)', 'value_width=-1 must be at least 0'),
    ('latent(rank=4, rope_width=3)', 'rope_width=3 is the width that the position rotates: .*'),
    ('latent(rank=4)', "leaves out 'rope_width'"),
  ):
    with pytest.raises(ValueError, match=rf'config\.model\.mixer=.*{message}'):
      make_mixer(text)
  with pytest.raises(ValueError, match="the position 'transformerxl' reads the keys.*'rope'"):
    make_mixer(position='transformer_xl')
  with pytest.raises(ValueError, match="the score 'additive' needs keys.*use 'dot'"):
    make_mixer(score='additive')
  with pytest.raises(
    ValueError, match='does not support grouped heads, so kv_heads=2 would be ignored; .* heads=4'
  ):
    make_mixer(kv_heads=2)
  x, params = jnp.asarray(X, jnp.float32), {'params': draw_params(SPECS[0])}
  with pytest.raises(ValueError, match="mixer='latent' does not support cross-attention"):
    make_mixer().apply(params, x, Memory(x, make_context()), make_context(), None)
