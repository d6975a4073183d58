"""LSH attention against its definition pair by pair, in both forms; no later token decides what is heard."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance import collect
from tests.conformance.tiny import config, decoder
from tests.reference import reformer
from tests.reference.reading import read
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.mixers.protocol import Context, Memory
from tfm.mixers.reformer import rotations
from tfm.models import flops


B, T, D, H, C = 3, 33, 16, 4, 4
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((B, T, D))
SEGMENTS = np.array([[1] * T, [0] * 3 + [1] * 25 + [0] * 5, [1] * 14 + [2] * 19])
POSITIONS = np.array([[*range(T)], [2, 0, 1, *range(25), 0, 1, 2, 3, 4], [*range(14), *range(19)]])
REAL = SEGMENTS > 0


def mixer(text, dropout=0.0, **model):
  c = config(**dict(mixer=text, position='none', dropout=dict(attention=dropout)) | model)
  return assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()


def context(part=slice(None), **fields):
  return Context(*(jnp.asarray(x[:, part], jnp.int32) for x in (POSITIONS, SEGMENTS)), **fields)


@functools.cache
def parameters(bias=True):
  module = mixer('reformer(buckets=4, chunk=3)', bias=bias)
  shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((B, T, D)), None, context(), None)
  return jax.tree.map(lambda x: 0.5 * DRAW.standard_normal(x.shape), nn.unbox(shapes['params']))


def run(result, x=X, pieces=None, bias=True):
  """y of all at once, or read through a cache in pieces."""
  return read(result, parameters(bias), x, context, pieces)[0]


def formula(result, mask='causal', bias=True):
  R = np.asarray(rotations(result.seed, H, C, result.hashes, result.buckets), np.float64)
  return reformer.forward(parameters(bias), X, POSITIONS, SEGMENTS, collect.mask(mask), R, result.chunk)


def close(y, expected):
  assert np.isfinite(y).all()
  np.testing.assert_allclose(y[REAL], expected[REAL], rtol=2e-5, atol=2e-5 * np.abs(expected).max())


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
  module = mixer(text, mask=mask, bias=bias)
  expected = formula(module, mask, bias)
  close(run(module, bias=bias), expected)
  if mask.startswith('causal'):
    close(run(module, pieces=(7, 1, 1, 12, 12), bias=bias), expected)


@pytest.mark.parametrize(
  'text',
  [
    'reformer(buckets=4, chunk=3)',
    pytest.param('reformer(buckets=2, chunk=4, hashes=4)', marks=pytest.mark.slow),
  ],
)
def test_what_is_heard_does_not_change_with_the_future(text):
  """By value: hashing has no gradient that would tell."""
  module, cut = mixer(text), 20
  for seed in range(5):
    other = X.copy()
    other[:, cut:] = np.random.default_rng(seed).standard_normal(other[:, cut:].shape) * 3
    y = run(module, other)
    np.testing.assert_allclose(y[:, :cut], run(module)[:, :cut], rtol=1e-6, atol=1e-6)
    assert (np.abs(y[:, cut:] - run(module)[:, cut:]) > 1e-3).any()


@pytest.mark.slow
def test_every_round_finds_more_and_nothing_twice():
  """A fourth round equal to the first adds nothing; rounds apart from it do."""
  params, x = parameters(), jnp.asarray(X, jnp.float32)

  def y(hashes):
    module = mixer(f'reformer(buckets=4, chunk=3, hashes={hashes})')
    return jax.jit(module.apply)({'params': params}, x, None, context(), None)[0]

  R = np.asarray(rotations(0, H, C, 3, 4))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      'tfm.mixers.reformer.rotations',
      lambda seed, heads, width, hashes, buckets: jnp.asarray(np.concatenate([R, R], 2)[:, :, :hashes]),
    )
    once, again, fewer = y(3), y(4), y(2)
  close(again, once)
  assert (np.abs(fewer - once)[REAL] > 1e-3).any()


def test_layers_and_runs_hash_alike_and_rounds_and_heads_do_not():
  R = rotations(3, H, C, 2, 6)
  assert R.shape == (H, C, 2, 3)
  assert (R == rotations(3, H, C, 2, 6)).all() and (R != rotations(4, H, C, 2, 6)).any()
  assert (R[0] != R[1]).all() and (R[:, :, 0] != R[:, :, 1]).all()
  assert set(parameters()) == {'qk', 'v', 'out'}


def test_bfloat16():
  module = mixer('reformer(buckets=2, chunk=40)', dtype='bfloat16')
  y, expected = run(module), formula(module)
  assert y.dtype == jnp.bfloat16
  # Rounding may put a token into another bucket: of the others there are enough.
  close_by = np.abs(y.astype(np.float64) - expected).max(-1) < 0.05 * np.abs(expected).max()
  assert close_by[REAL].mean() > 0.9


def test_dropout_is_on_the_weights_in_training_only():
  text, params, x = 'reformer(buckets=4, chunk=3)', {'params': parameters()}, jnp.asarray(X, jnp.float32)
  dropping = jax.jit(mixer(text, dropout=0.5).apply)
  quiet = dropping(params, x, None, context(), None)[0]
  np.testing.assert_array_equal(quiet, jax.jit(mixer(text).apply)(params, x, None, context(), None)[0])
  loud = dropping(params, x, None, context(train=True), None, rngs={'dropout': jax.random.key(0)})[0]
  assert (loud != quiet)[REAL].any()


def test_flops_grow_with_the_chunk_and_not_with_the_square_of_the_length():
  def pairs(length, chunk, mask='causal'):
    model = decoder(
      length, causal=False, mixer=f'reformer(buckets=4, chunk={chunk})', position='none', layers=1, mask=mask
    )
    projections, hashing = 3 * 2 * D * H * C, 2 * H * C * 2 * 2  # qk, v and out; hashes · buckets / 2
    return flops.per_token(model, length).kinds['mixer'] - projections - hashing

  # Two products over the own chunk and the one before, or those on both sides; two rounds.
  assert pairs(48, 4) == pairs(96, 4) == pytest.approx(2 * 2 * 2 * (2 * 4) * H * C)
  assert pairs(48, 4, 'full') == pytest.approx(2 * 2 * 2 * (3 * 4) * H * C)


def test_refusals():
  for text, complaint in (
    ('reformer(buckets=3, chunk=2)', 'buckets=3 must be even and at least 2'),
    ('reformer(buckets=0, chunk=2)', 'buckets=0 must be even and at least 2'),
    ('reformer(buckets=2, chunk=0)', 'chunk=0 must be at least 1'),
    ('reformer(buckets=2, chunk=2, hashes=0)', 'hashes=0 must be at least 1'),
    ('reformer(buckets=2)', "leaves out 'chunk'"),
  ):
    with pytest.raises(ValueError, match=rf'config\.model\.mixer=.*{complaint}'):
      mixer(text)
  with pytest.raises(ValueError, match='does not support the rotate'):
    mixer('reformer(buckets=4, chunk=3)', position='rope')
  with pytest.raises(ValueError, match='does not support grouped heads, so kv_heads=2 would be ignored'):
    mixer('reformer(buckets=4, chunk=3)', kv_heads=2)
  module, x = mixer('reformer(buckets=4, chunk=3)'), jnp.asarray(X, jnp.float32)
  with pytest.raises(ValueError, match="mixer='reformer' does not support cross-attention"):
    module.apply({'params': parameters()}, x, Memory(x, context()), context(), None)
