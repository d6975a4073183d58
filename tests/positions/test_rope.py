"""Rotary positions against both forms of the paper, and their scalings against published formulas."""

import jax.numpy as jnp
import numpy as np
import pytest

import tfm.positions
from tests.reference import rope
from tfm import spec
from tfm.positions.protocol import Position
from tfm.positions.rope import Rope


DRAW = np.random.default_rng(0)
Q, K = DRAW.standard_normal((2, 6, 4, 8)), DRAW.standard_normal((2, 6, 2, 8))
Q_AT, K_AT = DRAW.integers(0, 300, (2, 6)), DRAW.integers(0, 300, (2, 6))


def rotate(q_at, k_at, dtype=jnp.float32, **settings):
  module = Rope(width=32, heads=4, head_width=8, length=300, **settings)
  q, k = module.apply(
    {}, jnp.asarray(Q, dtype), jnp.asarray(K, dtype), jnp.asarray(q_at), jnp.asarray(k_at), method='rotate'
  )
  assert q.dtype == k.dtype == dtype
  return np.asarray(q.astype(jnp.float32)), np.asarray(k.astype(jnp.float32))


@pytest.mark.parametrize('theta', [10_000.0, 100.0])
@pytest.mark.parametrize('oracle', [rope.rotate, rope.rotate_complex])
def test_rope_equals_the_rotation(oracle, theta):
  q, k = rotate(Q_AT, K_AT, theta=theta)
  np.testing.assert_allclose(q, oracle(Q, Q_AT, theta), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(k, oracle(K, K_AT, theta), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('interleaved', [False, True])
@pytest.mark.parametrize('fraction', [1, 0.5, 0.75])
def test_pairings_and_rotated_fractions(fraction, interleaved):
  q, k = rotate(Q_AT, K_AT, fraction=fraction, interleaved=interleaved)
  channels = int(8 * fraction)
  pairs = dict(waves=rope.frequencies(10_000.0, channels), interleaved=interleaved)
  np.testing.assert_allclose(q, rope.rotate(Q, Q_AT, **pairs), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(k, rope.rotate(K, K_AT, **pairs), rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(q[..., channels:], Q[..., channels:].astype(np.float32))


SHORT, LONG = (1.0, 1.5, 2.0, 3.0), (1.0, 2.0, 9.0, 20.5)
SCALINGS = [
  ('linear(4)', rope.linear, dict(factor=4)),
  ('proportional(0.75)', rope.proportional, dict(share=0.75)),
  ('proportional(0.3, factor=4)', rope.proportional, dict(share=0.3, factor=4)),
  ('proportional(0)', rope.proportional, dict(share=0)),
  ('hope(100)', rope.hope, dict(length=100)),
  ('hope(6)', rope.hope, dict(length=6)),
  ('dynamic(factor=2, original=100)', rope.dynamic, dict(factor=2, original=100, length=300)),
  ('dynamic(factor=1, original=100, length=250)', rope.dynamic, dict(factor=1, original=100, length=250)),
  ('dynamic(factor=2, original=500)', rope.dynamic, dict(factor=2, original=500, length=500)),
  ('yarn(factor=4, original=64)', rope.yarn, dict(factor=4, original=64)),
  ('yarn(8, 10_000)', rope.yarn, dict(factor=8, original=10_000)),
  (
    'yarn(8, 300, beta_fast=20, beta_slow=2.5)',
    rope.yarn,
    dict(factor=8, original=300, beta_fast=20, beta_slow=2.5),
  ),
  ('llama3(original=600)', rope.llama3, dict(factor=8, low=1, high=4, original=600)),
  (
    'llama3(factor=32, low_freq_factor=2, high_freq_factor=30, original=100)',
    rope.llama3,
    dict(factor=32, low=2, high=30, original=100),
  ),
  (
    f'longrope({SHORT}, {LONG}, original=64)',
    rope.longrope,
    dict(short=SHORT, long=LONG, original=64, length=300),
  ),
  (
    f'longrope({SHORT}, {list(LONG)}, 64, length=64)',
    rope.longrope,
    dict(short=SHORT, long=LONG, original=64, length=64),
  ),
  (
    f'longrope({SHORT}, {LONG}, original=400)',
    rope.longrope,
    dict(short=SHORT, long=LONG, original=400, length=300),
  ),
]


@pytest.mark.parametrize('text, oracle, settings', SCALINGS)
def test_scalings(text, oracle, settings):
  q, k = rotate(Q_AT, K_AT, theta=1_000.0, scaling=text)
  waves, factor = oracle(1_000.0, 8, **settings)
  np.testing.assert_allclose(q, rope.rotate(Q, Q_AT, waves=waves, factor=factor), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(k, rope.rotate(K, K_AT, waves=waves, factor=factor), rtol=1e-5, atol=1e-5)
  changes_frequencies = not text.startswith('dynamic(factor=2, original=500)')
  assert (np.abs(waves - rope.frequencies(1_000.0, 8)).max() > 1e-3) == changes_frequencies


def test_scaling_depends_on_the_number_of_rotated_channels():
  q, _ = rotate(Q_AT, K_AT, fraction=0.5, interleaved=True, scaling='yarn(factor=4, original=700)')
  waves, factor = rope.yarn(10_000.0, 4, 4, 700)
  np.testing.assert_allclose(
    q, rope.rotate(Q, Q_AT, waves=waves, interleaved=True, factor=factor), rtol=1e-5, atol=1e-5
  )
  # The other channels are not scaled either.
  np.testing.assert_array_equal(q[..., 4:], Q[..., 4:].astype(np.float32))


@pytest.mark.parametrize(
  'text, factor',
  [
    ('yarn(40, 64, attention_factor=1.7)', 1.7),
    ('yarn(40, 64, mscale=0.7)', 0.07 * np.log(40) + 1),
    ('yarn(40, 64, mscale=0.7, mscale_all_dim=0.3)', (0.07 * np.log(40) + 1) / (0.03 * np.log(40) + 1)),
    ('yarn(40, 64, mscale=0.7, mscale_all_dim=0.7)', 1),
    ('yarn(1, 64)', 1),
    (f'longrope({SHORT}, {LONG}, 64, attention_factor=1.2)', 1.2),
    (f'longrope({SHORT}, {LONG}, 64, factor=32)', np.sqrt(1 + np.log(32) / np.log(64))),
    (f'longrope({SHORT}, {LONG}, 64, factor=32, length=9)', np.sqrt(1 + np.log(32) / np.log(64))),
    (f'longrope({SHORT}, {LONG}, 64, length=128)', np.sqrt(1 + np.log(2) / np.log(64))),
    ('llama3', 1),
    ('linear(3)', 1),
    ('dynamic(2, 100)', 1),
  ],
)
def test_attention_factors(text, factor):
  """Rotation keeps the norm of a vector, so the norm shows the factor."""
  q, k = rotate(Q_AT, K_AT, scaling=text)
  np.testing.assert_allclose(np.linalg.norm(q, axis=-1), factor * np.linalg.norm(Q, axis=-1), rtol=1e-5)
  np.testing.assert_allclose(np.linalg.norm(k, axis=-1), factor * np.linalg.norm(K, axis=-1), rtol=1e-5)


@pytest.mark.parametrize(
  'settings',
  [
    {},
    dict(interleaved=True),
    dict(fraction=0.5),
    dict(scaling='yarn(factor=4, original=64)'),
    dict(scaling='dynamic(2, 100)', interleaved=True),
    dict(scaling=f'longrope({SHORT}, {LONG}, 64)'),
  ],
  ids=str,
)
def test_rope_is_relative(settings):
  """Products of queries and keys depend on their distance alone (Su et al. 2021, eq. 11)."""

  def products(shift):
    q, k = rotate(Q_AT + shift, K_AT + shift, **settings)
    return np.einsum('bthc,bshc->bhts', q[:, :, :2], k)

  near = products(0)
  for shift in (57, 100_000, 10_000_000):
    np.testing.assert_allclose(near, products(shift), rtol=0, atol=2e-5)
  assert np.abs(near - np.einsum('bthc,bshc->bhts', Q[:, :, :2], K)).max() > 0.1


def test_rotation_keeps_position_zero_and_norms():
  q, _ = rotate(np.zeros((2, 6), int), K_AT)
  np.testing.assert_allclose(q, Q, rtol=1e-6)
  q, _ = rotate(Q_AT, K_AT)
  np.testing.assert_allclose(np.linalg.norm(q, axis=-1), np.linalg.norm(Q, axis=-1), rtol=1e-5)


@pytest.mark.parametrize('theta', [10_000.0, 500_000.0, 0.3])
def test_angles_are_exact_at_every_position(theta):
  """In float32 arithmetic the angle would be 0.004 off at position 100 000; theta below 1 turns fast."""
  at = np.array([[100_000, 99_999, 131_071, 1_000_003, 16_777_217, 2**31 - 1], [0, 1, 2, 3, 4_097, 65_535]])
  q, k = rotate(at, at[::-1], theta=theta)
  np.testing.assert_allclose(q, rope.rotate(Q, at, theta), rtol=0, atol=5e-6)
  np.testing.assert_allclose(k, rope.rotate(K, at[::-1], theta), rtol=0, atol=5e-6)


def test_angles_stay_exact_in_bfloat16():
  """In bf16 itself, position 257 would be 256 and its angle 1 off."""
  at = np.full((2, 6), 257)
  q, _ = rotate(at, K_AT, jnp.bfloat16)
  np.testing.assert_allclose(q, rope.rotate(Q, at), atol=0.05)
  q, _ = rotate(at, K_AT, jnp.bfloat16, fraction=0.5, interleaved=True, scaling='yarn(4, 700)')
  waves, factor = rope.yarn(10_000.0, 4, 4, 700)
  np.testing.assert_allclose(q, rope.rotate(Q, at, waves=waves, interleaved=True, factor=factor), atol=0.05)


@pytest.mark.parametrize(
  'text, messages',
  [
    ('rope(fraction=0)', ['fraction=0 must be above 0 and at most 1']),
    ('rope(fraction=1.5)', ['fraction=1.5', 'at most 1']),
    ('rope(fraction=0.4)', ['fraction=0.4 of the head width 8 is 3.2 channels', 'fraction=0.5, 4 channels']),
    ('rope(fraction=0.375)', ['3 channels, which is no number of pairs', 'fraction=0.5, 4 channels']),
    ('rope(fraction=0.1)', ['0.8 channels', 'fraction=0.25, 2 channels']),
    ('rope(theta=0.0)', ['theta=0.0 must be above 0']),
    ('rope(interleaved=1)', ['interleaved=1', 'bool']),
    ('rope(scaling="yran(4, 64)")', ["'yran(4, 64)' names 'yran'", "did you mean 'yarn'?"]),
    ('rope(scaling="yarn(4)")', ["leaves out 'original'", 'yarn takes (factor, original, beta_fast=32.0']),
    ('rope(scaling="yarn(4, 64, theta=3)")', ["passes 'theta'", 'known: factor, original']),
    ('rope(scaling="yarn(4, 64.5)")', ['original=64.5', 'must be of type int']),
    ('rope(scaling="yarn(0.5, 64)")', ['factor=0.5 must be at least 1']),
    ('rope(scaling="yarn(4, 0)")', ['original=0 must be at least 1']),
    ('rope(theta=10, scaling="yarn(4, 2)")', ['original=2 is so short', 'theta=10 ']),
    ('rope(theta=2.0, scaling="yarn(4, 1_000_000)")', ['original=1000000 is so long', 'theta=2.0']),
    ('rope(scaling="yarn(4, 64, beta_fast=1)")', ['beta_fast=1 must be above beta_slow=1.0']),
    ('rope(theta=1, scaling="yarn(4, 64)")', ['theta=1 must be above 1']),
    ('rope(scaling="linear(0.25)")', ['factor=0.25 must be at least 1']),
    ('rope(scaling="proportional(1.5)")', ['share=1.5 must lie between 0 and 1']),
    ('rope(scaling="proportional(0.5, factor=0.5)")', ['factor=0.5 must be at least 1']),
    ('rope(scaling="hope(0)")', ['length=0 must be at least 1']),
    ('rope(scaling="dynamic(2, 64, length=0)")', ['length=0 must be at least 1']),
    ('rope(fraction=0.25, scaling="dynamic(2, 64)")', ['only 2 channels are rotated', 'rotate 4 or more']),
    ('rope(scaling="llama3(low_freq_factor=4)")', ['high_freq_factor=4.0 must be above low_freq_factor=4']),
    (
      'rope(scaling="longrope((1, 2), (1, 2, 3, 4), 64)")',
      ['short_factor=(1, 2) must hold 4 numbers above 0'],
    ),
    ('rope(scaling="longrope((1, 2, 3, 4), (1, 2, 0, 4), 64)")', ['long_factor=(1, 2, 0, 4) must hold 4']),
    ('rope(scaling="longrope((1, 2, 3, 4), 3, 64)")', ['long_factor=3 must be of type tuple[float, ...]']),
    ('rope(scaling="longrope((1, 2, 3, 4), (1, 2, 3, 4), 1)")', ['original=1 must be at least 2']),
  ],
)
def test_invalid_settings(text, messages):
  with pytest.raises(ValueError) as error:
    spec.factory(text, tfm.positions, Position, width=32, heads=4, head_width=8, length=300)
  assert all(message in str(error.value) for message in messages), error.value
  assert '\n' not in str(error.value)
