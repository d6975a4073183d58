"""Latent attention against the paper's equations, with keys made and with keys never made."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance import collect
from tests.conformance.tiny import config, decoder
from tests.reference import latent, rope
from tests.reference.reading import read
from tfm.config import assemble
from tfm.config.assemble import Experiment
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


def mixer(text=SPECS[0], dropout=0.0, **model):
  c = config(mixer=text, dropout=dict(attention=dropout), **model)
  return assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()


def context(part=slice(None), positions=POSITIONS, segments=SEGMENTS, **fields):
  return Context(*(jnp.asarray(x[:, part], jnp.int32) for x in (positions, segments)), **fields)


@functools.cache
def parameters(text, bias=True):
  module = mixer(text, bias=bias)
  shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((B, T, D)), None, context(), None)
  return jax.tree.map(lambda x: 0.5 + 0.5 * DRAW.standard_normal(x.shape), nn.unbox(shapes['params']))


def run(result, params, pieces=None, **fields):
  """y of all at once, or read through a cache in pieces."""
  return read(result, params, X, functools.partial(context, **fields), pieces)


def close(y, expected):
  assert np.isfinite(y).all()
  np.testing.assert_allclose(y[REAL], expected[REAL], rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize('text', SPECS)
@pytest.mark.parametrize(
  'position, mask, bias',
  [('rope', 'causal', True), ('rope', 'causal & window(2)', False), ('none', 'full', True)],
)
def test_formula(text, position, mask, bias):
  module, params = mixer(text, position=position, mask=mask, bias=bias), parameters(text, bias)
  expected = latent.forward(params, X, POSITIONS, SEGMENTS, collect.mask(mask), ROTATE[position])
  close(run(module, params)[0], expected)
  if mask != 'full':
    close(run(module, params, (4, 1, 5))[0], expected)


@pytest.mark.parametrize('text', SPECS)
def test_what_is_cached_is_the_rank_and_the_rotated_key(text):
  module = mixer(text)
  _, cache = run(module, parameters(text), (T,))
  channels = module.rank + module.rope_width
  assert {name: x.shape for name, x in cache.arrays.items()} == {'latent': (B, 1, T + 2, channels)}


def test_what_is_read_piece_by_piece_is_no_whole_row():
  """Of a whole row a blockwise kernel would take indices for positions."""
  module = mixer(kernel='chunked(queries=4, keys=3)')
  at = dict(layout='contiguous', positions=WHOLE, segments=WHOLE * 0 + 1)
  whole, pieced = (run(module, parameters(SPECS[0]), pieces, **at)[0] for pieces in (None, (2, 5, 3)))
  np.testing.assert_allclose(pieced, whole, rtol=2e-5, atol=2e-5 * np.abs(whole).max())


def test_what_rises_from_a_rank_has_no_bias():
  for text, expected in zip(
    SPECS, ({'down', 'q', 'out'}, {'down', 'q_down', 'out'}, {'down', 'q', 'out'}), strict=True
  ):
    leaves = jax.tree_util.tree_leaves_with_path(parameters(text))
    assert {path[0].key for path, _ in leaves if path[-1].key == 'bias'} == expected


def test_biases_at_the_logits_meet_both_forms():
  module, params = mixer(position='alibi'), parameters(SPECS[0])
  whole, _ = run(module, params)
  close(run(module, params, (4, 1, 5))[0], whole)
  assert (np.abs(whole - run(mixer(position='none'), params)[0]) > 1e-3)[REAL].any()


@pytest.mark.parametrize('pieces', [None, (4, 6)])
def test_a_blockwise_kernel_serves_values_of_another_width(pieces):
  params = parameters(SPECS[0])
  blockwise, dense = (mixer(kernel=kernel) for kernel in ('chunked(queries=4, keys=3)', 'dense'))
  close(run(blockwise, params, pieces)[0], run(dense, params, pieces)[0])


def test_a_given_scale_holds_in_both_forms():
  module, params = mixer(score='dot(scale=0.1)'), parameters(SPECS[0])
  whole, _ = run(module, params)
  close(run(module, params, (4, 6))[0], whole)
  assert np.abs(whole - run(mixer(), params)[0])[REAL].max() > 1e-3


def test_bfloat16():
  params = parameters(SPECS[0])
  expected = latent.forward(params, X, POSITIONS, SEGMENTS, collect.mask('causal'), rope.rotate)
  for pieces in (None, (4, 6)):
    y, _ = run(mixer(dtype='bfloat16'), params, pieces)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y[REAL].astype(float), expected[REAL], atol=0.05 * np.abs(expected).max())


@pytest.mark.slow
def test_dropout_is_on_the_weights_in_training_only():
  module, params = mixer(dropout=0.5), {'params': parameters(SPECS[0])}
  x = jnp.asarray(X, jnp.float32)
  quiet = module.apply(params, x, None, context(), None)[0]
  np.testing.assert_array_equal(quiet, mixer().apply(params, x, None, context(), None)[0])
  loud = module.apply(params, x, None, context(train=True), None, rngs={'dropout': jax.random.key(0)})[0]
  assert (loud != quiet)[REAL].any()


@pytest.mark.parametrize(
  'text, value_width',
  [('latent(rank=8, rope_width=6)', C), ('latent(rank=8, rope_width=6, value_width=7)', 7)],
)
def test_flops_are_those_of_training(text, value_width):
  rank, rope_width, length = 8, 6, 12
  counted = flops.per_token(decoder(length, mixer=text, layers=1), length).kinds
  projections = (
    D * H * (C + rope_width) + D * (rank + rope_width) + rank * H * (C + value_width) + H * value_width * D
  )
  assert counted['mixer'] == pytest.approx(2 * projections)
  pairs = (length + 1) / 2 * H * (C + rope_width + value_width)
  assert counted['mixer' + flops.PAIRS] == pytest.approx(2 * pairs)


def test_refusals():
  for text, complaint in (
    ('latent(rank=0, rope_width=2)', 'rank=0 must be 1 or more'),
    ('latent(rank=4, rope_width=0)', 'rope_width=0 must be 1 or more'),
    ('latent(rank=4, rope_width=2, query_rank=-1)', 'query_rank=-1 must be 0 or more'),
    ('latent(rank=4, rope_width=2, value_width=-1)', 'value_width=-1 must be 0 or more'),
    ('latent(rank=4, rope_width=3)', 'rope_width=3 is the width that the position rotates: .*'),
    ('latent(rank=4)', "leaves out 'rope_width'"),
  ):
    with pytest.raises(ValueError, match=rf'config\.model\.mixer=.*{complaint}'):
      mixer(text)
  with pytest.raises(ValueError, match="the position 'transformerxl' reads the keys.*'rope'"):
    mixer(position='transformer_xl')
  with pytest.raises(ValueError, match="the score 'additive' needs keys.*use 'dot'"):
    mixer(score='additive')
  with pytest.raises(
    ValueError, match='does not support grouped heads, so kv_heads=2 would be ignored; .* heads=4'
  ):
    mixer(kv_heads=2)
  x, params = jnp.asarray(X, jnp.float32), {'params': parameters(SPECS[0])}
  with pytest.raises(ValueError, match="mixer='latent' does not support cross-attention"):
    mixer().apply(params, x, Memory(x, context()), context(), None)
