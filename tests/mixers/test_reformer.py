"""LSH attention against its definition pair by pair, with and without a cache; its causality and FLOPs."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import reformer
from tests.reference.reading import read
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import collect
from tfm.conformance.tiny import config, decoder
from tfm.mixers.protocol import Context, Memory
from tfm.mixers.reformer import rotations
from tfm.models import flops


B, T, D, H, C = 3, 33, 16, 4, 4
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((B, T, D))
SEGMENTS = np.array([[1] * T, [0] * 3 + [1] * 25 + [0] * 5, [1] * 14 + [2] * 19])
POSITIONS = np.array([[*range(T)], [2, 0, 1, *range(25), 0, 1, 2, 3, 4], [*range(14), *range(19)]])
REAL = SEGMENTS > 0


def make_mixer(text, dropout=0.0, **model):
  c = config(**dict(mixer=text, position='none', dropout=dict(attention=dropout)) | model)
  return assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()


def make_context(part=slice(None), **fields):
  return Context(*(jnp.asarray(x[:, part], jnp.int32) for x in (POSITIONS, SEGMENTS)), **fields)


@functools.cache
def draw_params(bias=True):
  module = make_mixer('reformer(buckets=4, chunk=3)', bias=bias)
  shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((B, T, D)), None, make_context(), None)
  return jax.tree.map(lambda x: 0.5 * DRAW.standard_normal(x.shape), nn.unbox(shapes['params']))


def run(module, x=X, pieces=None, bias=True):
  """y of whole rows, or of pieces through a cache."""
  return read(module, draw_params(bias), x, make_context, pieces)[0]


def formula(module, mask='causal', bias=True):
  R = np.asarray(rotations(module.seed, H, C, module.hashes, module.buckets), np.float64)
  return reformer.forward(draw_params(bias), X, POSITIONS, SEGMENTS, collect.mask(mask), R, module.chunk)


def close(y, expected):
  assert np.isfinite(y).all()
  np.testing.assert_allclose(y[REAL], expected[REAL], rtol=2e-5, atol=2e-5 * np.abs(expected).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
  'text, mask, bias',
  [
    ('reformer(buckets=4, chunk=3)', 'causal', True),
    ('reformer(buckets=2, chunk=5, hashes=1, seed=3)', 'causal & ~window(2)', False),
    ('reformer(buckets=6, chunk=1, hashes=4)', 'causal', True),
    ('reformer(buckets=2, chunk=4, hashes=3)', 'causal & (window(6) | global_tokens(2))', True),
    ('reformer(buckets=2, chunk=40, hashes=2)', 'causal', True),
    ('reformer(buckets=4, chunk=3, hashes=3)', 'full', True),
    ('reformer(buckets=2, chunk=4)', 'window(3) & ~window(0)', True),
  ],
)
def test_formula(text, mask, bias):
  module = make_mixer(text, mask=mask, bias=bias)
  expected = formula(module, mask, bias)
  close(run(module, bias=bias), expected)
  if mask.startswith('causal'):
    close(run(module, pieces=(7, 1, 1, 12, 12), bias=bias), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
  'text',
  [
    'reformer(buckets=4, chunk=3)',
    pytest.param('reformer(buckets=2, chunk=4, hashes=4)', marks=pytest.mark.slow),
  ],
)
def test_outputs_do_not_depend_on_later_tokens(text):
  """Compares values, because hashing has no gradient."""
  module, start = make_mixer(text), 20
  for seed in range(5):
    other = X.copy()
    other[:, start:] = np.random.default_rng(seed).standard_normal(other[:, start:].shape) * 3
    y = run(module, other)
    np.testing.assert_allclose(y[:, :start], run(module)[:, :start], rtol=1e-6, atol=1e-6)
    assert (np.abs(y[:, start:] - run(module)[:, start:]) > 1e-3).any()


@pytest.mark.slow
def test_rounds_add_keys_and_count_none_twice():
  """A fourth round equal to the first changes nothing; a different round does."""
  params, x = draw_params(), jnp.asarray(X, jnp.float32)

  def y(hashes):
    module = make_mixer(f'reformer(buckets=4, chunk=3, hashes={hashes})')
    return jax.jit(module.apply)({'params': params}, x, None, make_context(), None)[0]

  R = np.asarray(rotations(0, H, C, 3, 4))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      'tfm.mixers.reformer.rotations',
      lambda seed, heads, width, hashes, buckets: jnp.asarray(np.concatenate([R, R], 2)[:, :, :hashes]),
    )
    three, repeated, two = y(3), y(4), y(2)
  close(repeated, three)
  assert (np.abs(two - three)[REAL] > 1e-3).any()


def test_rotations_differ_by_seed_head_and_round():
  R = rotations(3, H, C, 2, 6)
  assert R.shape == (H, C, 2, 3)
  assert (R == rotations(3, H, C, 2, 6)).all() and (R != rotations(4, H, C, 2, 6)).any()
  assert (R[0] != R[1]).all() and (R[:, :, 0] != R[:, :, 1]).all()
  assert set(draw_params()) == {'qk', 'v', 'out'}


def test_bfloat16():
  module = make_mixer('reformer(buckets=2, chunk=40)', dtype='bfloat16')
  y, expected = run(module), formula(module)
  assert y.dtype == jnp.bfloat16
  # Rounding may move a token to another bucket; most tokens stay.
  close_by = np.abs(y.astype(np.float64) - expected).max(-1) < 0.05 * np.abs(expected).max()
  assert close_by[REAL].mean() > 0.9


def test_dropout_applies_to_the_weights_in_training_only():
  text, params, x = 'reformer(buckets=4, chunk=3)', {'params': draw_params()}, jnp.asarray(X, jnp.float32)
  dropping = jax.jit(make_mixer(text, dropout=0.5).apply)
  without_dropout = dropping(params, x, None, make_context(), None)[0]
  np.testing.assert_array_equal(
    without_dropout, jax.jit(make_mixer(text).apply)(params, x, None, make_context(), None)[0]
  )
  with_dropout = dropping(
    params, x, None, make_context(train=True), None, rngs={'dropout': jax.random.key(0)}
  )[0]
  assert (with_dropout != without_dropout)[REAL].any()


def test_flops_depend_on_the_chunk_and_not_on_the_length():
  def pairs(length, chunk, mask='causal'):
    model = decoder(
      length, causal=False, mixer=f'reformer(buckets=4, chunk={chunk})', position='none', layers=1, mask=mask
    )
    projections, hashing = 3 * 2 * D * H * C, 2 * H * C * 2 * 2  # qk, v and out; hashes · buckets / 2
    return flops.per_token(model, length).kinds['mixer'] - projections - hashing

  # Two products over the own chunk and the one before, or those on both sides; two rounds.
  assert pairs(48, 4) == pairs(96, 4) == pytest.approx(2 * 2 * 2 * (2 * 4) * H * C)
  assert pairs(48, 4, 'full') == pytest.approx(2 * 2 * 2 * (3 * 4) * H * C)


def test_invalid_settings():
  for text, message in (
    ('reformer(buckets=3, chunk=2)', 'buckets=3 must be even and at least 2'),
    ('reformer(buckets=0, chunk=2)', 'buckets=0 must be at least 1'),
    ('reformer(buckets=2, chunk=0)', 'chunk=0 must be at least 1'),
    ('reformer(buckets=2, chunk=2, hashes=0)', 'hashes=0 must be at least 1'),
    ('reformer(buckets=2)', "leaves out 'chunk'"),
  ):
    with pytest.raises(ValueError, match=rf'config\.model\.mixer=.*{message}'):
      make_mixer(text)
  with pytest.raises(ValueError, match='does not support the rotate'):
    make_mixer('reformer(buckets=4, chunk=3)', position='rope')
  with pytest.raises(ValueError, match='does not support grouped heads, so kv_heads=2 would be ignored'):
    make_mixer('reformer(buckets=4, chunk=3)', kv_heads=2)
  module, x = make_mixer('reformer(buckets=4, chunk=3)'), jnp.asarray(X, jnp.float32)
  with pytest.raises(ValueError, match="mixer='reformer' does not support cross-attention"):
    module.apply({'params': draw_params()}, x, Memory(x, make_context()), make_context(), None)
