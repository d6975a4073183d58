"""Where norms and residuals stand, against the formulas, with branches simple enough to write down."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.residuals
from tfm import spec
from tfm.layers.canon import Canon
from tfm.mixers.protocol import Context
from tfm.models.block import Block
from tfm.residuals.protocol import PLACEMENTS, Residual


X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


class Mix(nn.Module):
  """f(x) = sin(2 x), and a cache that counts."""

  def __call__(self, x, memory, context, cache):
    return jnp.sin(2 * x), None if cache is None else cache + 1


class Feed(nn.Module):
  """g(x) = cos(3 x)."""

  def __call__(self, x, valid):
    return jnp.cos(3 * x)


class Norm(nn.Module):
  """n(x) = a x / max |x|, with an a of each norm's own."""

  @nn.compact
  def __call__(self, x):
    a = self.param('a', nn.initializers.ones, ())
    return a * x / jnp.abs(x).max(-1, keepdims=True)


def f(x):
  return np.sin(2 * x)


def g(x):
  return np.cos(3 * x)


def n(a, x):
  return a * x / np.abs(x).max(-1, keepdims=True)


def block(placement='pre', residual='sequential', dropout=0.0, mixer=Mix, feed_forward=Feed):
  added = spec.build(residual, tfm.residuals, Residual)
  return Block(mixer, feed_forward, Norm, placement, added, dropout)


def out(result, norms, x=X, cache=None, train=False, key=None):
  params = {name: {'a': jnp.float32(a)} for name, a in norms.items()}
  context = Context.contiguous(jnp.zeros(x.shape[:2], jnp.int32), train)
  y, stored = result.apply(
    {'params': params},
    jnp.asarray(x),
    None,
    context,
    None if cache is None else {'mixer': cache},
    rngs={} if key is None else {'dropout': key},
  )
  return y, None if stored is None else stored['mixer']


def pre(x):
  x = x + f(n(2, x))
  return x + g(n(3, x))


def post(x):
  x = n(2, x + f(x))
  return n(3, x + g(x))


def sandwich(x):
  x = x + n(4, f(n(2, x)))
  return x + n(5, g(n(3, x)))


def res_post(x):
  x = x + n(4, f(x))
  return x + n(5, g(x))


def deepnorm(x):
  x = n(2, 2**0.25 * x + f(x))
  return n(3, 2**0.25 * x + g(x))


def side_by_side(x):
  return x + f(n(2, x)) + g(n(3, x))


def side_by_side_of_one_norm(x):
  return x + f(n(2, x)) + g(n(2, x))


def normed(x):
  x = n(2, x) + f(n(2, x))
  return n(3, x) + g(n(3, x))


NORMS = dict(mixer_norm=2, feed_forward_norm=3)
AFTER = dict(mixer_norm_after=4, feed_forward_norm_after=5)
FORMULAS = {
  ('pre', 'sequential'): (pre, NORMS),
  ('post', 'sequential'): (post, NORMS),
  ('sandwich', 'sequential'): (sandwich, NORMS | AFTER),
  ('res_post', 'sequential'): (res_post, AFTER),
  ('post', 'deepnorm'): (deepnorm, NORMS),
  ('pre', 'parallel'): (side_by_side, NORMS),
  ('pre', 'parallel_one_norm'): (side_by_side_of_one_norm, dict(norm=2)),
  ('pre', 'normed'): (normed, NORMS),
}
# Those that leave x itself in the residual stream.
ADDING = 'sequential', 'parallel', 'parallel_one_norm'


@pytest.mark.parametrize('placement, residual', FORMULAS)
def test_placement(placement, residual):
  result, (formula, norms) = block(placement, residual), FORMULAS[placement, residual]
  y, cache = out(result, norms)
  np.testing.assert_allclose(y, formula(X), rtol=1e-5, atol=1e-5)
  assert cache is None
  # No norm besides these has parameters.
  context = Context.contiguous(jnp.zeros((2, 3), jnp.int32))
  params = result.init(jax.random.key(0), jnp.asarray(X), None, context, None)['params']
  assert set(params) == set(norms)


@pytest.mark.parametrize(
  'placement, formula, norms',
  [
    ('pre', lambda x: x + f(n(2, x)), dict(mixer_norm=2)),
    ('post', lambda x: n(2, x + f(x)), dict(mixer_norm=2)),
    ('sandwich', lambda x: x + n(4, f(n(2, x))), dict(mixer_norm=2, mixer_norm_after=4)),
    ('res_post', lambda x: x + n(4, f(x)), dict(mixer_norm_after=4)),
  ],
  ids=PLACEMENTS,
)
def test_a_mixer_alone(placement, formula, norms):
  result = block(placement, feed_forward=None)
  y, cache = out(result, norms, cache=jnp.int32(5))
  np.testing.assert_allclose(y, formula(X), rtol=1e-5, atol=1e-5)
  assert cache == 6
  context = Context.contiguous(jnp.zeros((2, 3), jnp.int32))
  assert set(result.init(jax.random.key(0), jnp.asarray(X), None, context, None)['params']) == set(norms)


def test_a_convolution_beside_the_block():
  segments, taps = np.array([[1, 1, 1, 2, 2, 0]]), 3
  x, kernel, bias = (
    np.random.default_rng(3).standard_normal(shape) for shape in ((1, 6, 4), (taps, 4, 4), 4)
  )
  result = block('post', f'convolved({taps}, activation="relu")')
  params = {name: {'a': jnp.float32(a)} for name, a in (NORMS | dict(convolution_norm=4)).items()}
  params['convolution'] = dict(kernel=jnp.float32(kernel), bias=jnp.float32(bias))
  context = Context(jnp.zeros((1, 6), jnp.int32), jnp.asarray(segments))
  y, _ = result.apply({'params': params}, jnp.float32(x), None, context, None)
  expected = np.zeros((6, 4))
  for t in range(6):
    z = bias.copy()
    for k in range(taps):
      if 0 <= (near := t + k - 1) < 6 and segments[0, near] == segments[0, t]:
        z += x[0, near] @ kernel[k]
    expected[t] = n(4, post(x[0, t : t + 1])[0] + np.maximum(z, 0))
  np.testing.assert_allclose(y[0], expected, rtol=1e-4, atol=1e-5)


def test_a_stream_of_unit_length():
  def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)

  a = np.random.default_rng(3).standard_normal((2, 4))
  params = {f'{name}_rates': dict(scale=jnp.float32(v)) for name, v in zip(('mixer', 'feed_forward'), a)}
  context = Context.contiguous(jnp.zeros((2, 3), jnp.int32))
  y, _ = block('res_post', 'spherical(0.3)').apply({'params': params}, jnp.asarray(X), None, context, None)
  h = unit(X)
  for rates, branch in zip(np.abs(a) * 2 * 0.3, (f, g)):  # √D = 2
    h = unit((1 - rates) * h + rates * unit(branch(h)))
  np.testing.assert_allclose(y, h, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(np.linalg.norm(y, axis=-1), 1, rtol=1e-5)


def test_the_rates_of_a_stream_of_unit_length_start_as_said():
  context = Context.contiguous(jnp.zeros((2, 3), jnp.int32))
  result = block('res_post', 'spherical(0.3)')
  y, params = result.init_with_output(jax.random.key(0), jnp.asarray(X), None, context, None)
  assert set(params['params']) == {'mixer_rates', 'feed_forward_rates'}
  h = X / np.linalg.norm(X, axis=-1, keepdims=True)
  for branch in (f, g):
    z = branch(h)
    h = 0.7 * h + 0.3 * z / np.linalg.norm(z, axis=-1, keepdims=True)
    h = h / np.linalg.norm(h, axis=-1, keepdims=True)
  np.testing.assert_allclose(y[0], h, rtol=1e-5, atol=1e-5)


def test_canon_layers_pass_over_padding():
  weight, draw = np.random.default_rng(3).standard_normal((4, 4)), np.random.default_rng(4)
  make = functools.partial(Canon, (4,), ('embed',), jnp.float32)
  module = dataclasses.replace(block(), canon={'mixer': make})
  params = {name: {'a': jnp.float32(a)} for name, a in NORMS.items()}
  params['mixer_canon'] = dict(convolution=dict(weight=jnp.asarray(weight, jnp.float32)))

  def run(x, segments):
    segments = jnp.asarray([segments])
    x = jnp.asarray(x[None], jnp.float32)
    return module.apply({'params': params}, x, None, Context(jnp.zeros_like(segments), segments), None)[0][0]

  x = draw.standard_normal((7, 4))
  real = [0, 1, 3, 4, 6]
  np.testing.assert_allclose(
    run(x, [1, 1, 0, 1, 1, 0, 1])[np.array(real)], run(x[real], [1] * 5), rtol=1e-5, atol=1e-5
  )


def test_every_placement_is_tested():
  assert {placement for placement, _ in FORMULAS} == set(PLACEMENTS)


def test_the_feed_forward_layer_gets_what_is_padding():
  class ZeroPadding(nn.Module):
    def __call__(self, x, valid):
      return jnp.where(valid[..., None], jnp.cos(3 * x), 0)

  segments = np.array([[0, 1, 1], [2, 3, 0]])
  context = Context(jnp.zeros((2, 3), jnp.int32), jnp.asarray(segments))
  params = {name: {'a': jnp.float32(a)} for name, a in NORMS.items()}
  y, _ = block(feed_forward=ZeroPadding).apply({'params': params}, jnp.asarray(X), None, context, None)
  after = X + f(n(2, X))
  np.testing.assert_allclose(y, np.where(segments[..., None] > 0, pre(X), after), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('placement, residual', FORMULAS)
def test_the_cache_passes_through_the_mixer_once(placement, residual):
  _, cache = out(block(placement, residual), FORMULAS[placement, residual][1], cache=jnp.int32(5))
  assert cache == 6


class One(Mix):
  """A branch of ones."""

  def __call__(self, x, memory=None, context=None, cache=None):
    return (jnp.ones_like(x), None)


class Nothing(Mix):
  def __call__(self, x, valid):
    return jnp.zeros_like(x)


class Ones(Mix):
  def __call__(self, x, valid):
    return jnp.ones_like(x)


class Silent(Mix):
  def __call__(self, x, memory, context, cache):
    return jnp.zeros_like(x), None


@pytest.mark.parametrize('branches', [(One, Nothing), (Silent, Ones)], ids=['mixer', 'feed-forward'])
@pytest.mark.parametrize('residual', ADDING)
def test_dropout_drops_its_share_of_what_a_branch_adds(branches, residual):
  result = block('pre', residual, 0.25, *branches)
  x = np.full((4, 100, 50), 10, np.float32)
  run = functools.partial(out, result, FORMULAS['pre', residual][1], x)
  y, _ = run(train=True, key=jax.random.key(0))
  added = np.asarray(y) - 10
  stored = added > 0.5
  np.testing.assert_allclose(added[stored], 1 / 0.75, rtol=1e-4)
  assert not added[~stored].any() and abs(stored.mean() - 0.75) < 0.02  # 20 000 numbers
  assert all((stored[0] != stored[i]).any() and (stored[:, 0] != stored[:, i]).any() for i in (1, 2, 3))
  again, _ = run(train=True, key=jax.random.key(0))
  other, _ = run(train=True, key=jax.random.key(1))
  assert (y == again).all() and (y != other).any()
  # At evaluation nothing is dropped, and no random key is needed.
  np.testing.assert_array_equal(run()[0], np.full_like(x, 11))


@pytest.mark.parametrize('residual', ADDING)
def test_the_two_branches_are_dropped_apart(residual):
  result = block('pre', residual, 0.5, One, Ones)
  y, _ = out(
    result,
    FORMULAS['pre', residual][1],
    np.full((4, 100, 50), 10, np.float32),
    train=True,
    key=jax.random.key(0),
  )
  counts = np.unique(np.round(np.asarray(y) - 10), return_counts=True)
  assert counts[0].tolist() == [0, 2, 4]  # neither, one, both
  np.testing.assert_allclose(counts[1] / y.size, [0.25, 0.5, 0.25], atol=0.02)
