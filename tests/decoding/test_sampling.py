"""Sampling against a sorting oracle in NumPy and against the exact probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding import tiny
from tfm.decoding.sampling import (
  Sampling,
  filter_logits,
  find_prompt_tokens,
  first_argmax,
  penalize_repetition,
  row_keys,
  sample_tokens,
  to_ordered_bits,
  transform_logits,
)


FILTERED, SAMPLE = jax.jit(filter_logits), jax.jit(sample_tokens)


def oracle(logits, top_k, top_p, min_p=0.0):
  """The remaining tokens of one row: sort, cut at k, renormalize, cut at p, cut at a share of the maximum."""
  order = np.argsort(-logits, kind='stable')
  if top_k:
    order = order[:top_k]
  probabilities = np.exp(logits[order].astype(np.float64) - logits.max())
  probabilities /= probabilities.sum()
  before = np.cumsum(probabilities) - probabilities
  is_kept = np.zeros(len(logits), bool)
  is_kept[order[((before < top_p) | (top_p == 1)) & (probabilities >= min_p * probabilities[0])]] = True
  return is_kept


@pytest.mark.parametrize('top_k', [0, 1, 2, 7, 100, 1000])
@pytest.mark.parametrize('top_p', [1e-6, 0.1, 0.5, 0.93, 1.0])
@pytest.mark.parametrize('ties', [False, True])
def test_filters_equal_sorting(top_k, top_p, ties):
  logits = np.random.default_rng(top_k).normal(0, 3, (5, 100)).astype(np.float32)
  if ties:
    logits = np.round(logits)
  check_filters(logits, top_k, top_p, 0.0)


@pytest.mark.parametrize(
  'top_k, top_p, min_p', [(0, 1.0, 0.1), (0, 1.0, 1e-6), (0, 1.0, 1.0), (7, 0.93, 0.02), (0, 0.8, 0.05)]
)
def test_min_p_equals_sorting(top_k, top_p, min_p):
  check_filters(np.random.default_rng(1).normal(0, 3, (5, 100)).astype(np.float32), top_k, top_p, min_p)


def check_filters(logits, *settings):
  filtered = np.asarray(FILTERED(logits, *settings))
  np.testing.assert_array_equal(np.isfinite(filtered), [oracle(row, *settings) for row in logits])
  np.testing.assert_array_equal(filtered[np.isfinite(filtered)], logits[np.isfinite(filtered)])


def test_filters_of_equal_logits():
  even = jnp.zeros((2, 8))
  for same in (even, even - 1, even + 1):
    assert np.isfinite(FILTERED(same, 3, 1.0, 0.0)).tolist() == [[True] * 3 + [False] * 5] * 2
  assert np.isfinite(FILTERED(even, 0, 0.5, 0.0)).tolist() == [[True] * 4 + [False] * 4] * 2
  assert np.isfinite(FILTERED(even, 4, 0.5, 0.0)).tolist() == [[True] * 2 + [False] * 6] * 2
  # Without filters a large negative logit is kept.
  assert np.isfinite(FILTERED(jnp.array([[0.0, -1e30]]), 0, 1.0, 0.0)).all()
  assert np.isfinite(FILTERED(even, 0, 1.0, 1.0)).all()


@pytest.mark.parametrize(
  'sampling',
  [
    Sampling(),
    Sampling(temperature=5.0, top_k=1),
    Sampling(temperature=5.0, top_p=1e-9),
    Sampling(temperature=5.0, min_p=1.0),
    Sampling(temperature=1.2e-38),  # smaller ones are not normal numbers, and 0 on a CPU
    Sampling(temperature=1e-6),
  ],
  ids=str,
)
def test_settings_that_are_greedy(sampling):
  """Ties included, of which the first token wins; with logits at both ends of the float32 range."""
  logits = np.round(np.random.default_rng(0).normal(0, 1, (64, 50))).astype(np.float32)
  if sampling.top_k == 1 or sampling.top_p < 1 or not sampling.temperature:
    logits[0], logits[1] = 0, -3e38
  else:
    # Without a filter a temperature near 0 still samples among ties.
    logits += np.random.default_rng(1).normal(0, 0.1, logits.shape).astype(np.float32)
    logits[2] -= 100
  keys = jax.random.split(jax.random.key(0), 64)
  tokens = SAMPLE(jnp.asarray(logits), keys, jnp.arange(64), sampling)
  np.testing.assert_array_equal(tokens, logits.argmax(-1))


@pytest.mark.parametrize('temperature', [0.0, 0.5])
def test_the_maximum_of_each_row_becomes_0(temperature):
  """So that no temperature overflows; 0 is that of the smallest normal number."""
  logits = np.array([[1, 2, 0], [100, 99, 98]], np.float32)
  expected = np.array([[-1, 0, -2], [0, -1, -2]]) / max(temperature, np.finfo(np.float32).tiny)
  np.testing.assert_allclose(transform_logits(logits, Sampling(temperature)), expected, rtol=1e-6)


def test_first_argmax_is_argmax_and_marks_nan():
  logits = jnp.array([[0.0, 2, 2], [-jnp.inf, -jnp.inf, -1], [0, jnp.nan, 1], [-0.0, 0, 0]])
  assert first_argmax(logits).tolist() == [1, 2, 3, 0]


def test_to_ordered_bits_keeps_the_order():
  x = np.array([-np.inf, -3e38, -1, -1e-30, 0, 1e-30, 1, 3e38, np.inf], np.float32)
  assert (np.diff(np.asarray(to_ordered_bits(x)).astype(np.int64)) > 0).all()
  assert to_ordered_bits(jnp.float32(-0.0)) == to_ordered_bits(jnp.float32(0.0))


@pytest.mark.parametrize(
  'sampling',
  [
    Sampling(1.0),
    Sampling(0.5),
    Sampling(2.0, top_k=3),
    Sampling(1.0, top_p=0.8),
    Sampling(1.5, 5, 0.7),
    Sampling(1.5, min_p=0.3),
  ],
  ids=str,
)
def test_frequencies(sampling):
  """χ² of 20 000 samples against the probabilities; excluded tokens are never sampled."""
  logits = np.array([2.0, -1.0, 0.5, 1.5, 0.0, 1.0, -2.0, 0.7], np.float32)
  n = 20_000
  keys = jnp.broadcast_to(jax.random.key(11), (n,))
  tokens = SAMPLE(jnp.broadcast_to(logits, (n, 8)), keys, jnp.arange(n), sampling)
  is_kept = oracle(logits / sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
  expected = np.where(is_kept, np.exp(logits / sampling.temperature), 0)
  expected *= n / expected.sum()
  counts = np.bincount(tokens, minlength=8)
  assert not counts[~is_kept].any()
  # The 99.9 % quantile of χ² with seven degrees of freedom is 24.3.
  assert ((counts - expected)[is_kept] ** 2 / expected[is_kept]).sum() < 24.3


def test_repetition_penalty_applies_to_seen_tokens():
  """To logits of either sign, also in greedy decoding, and before the other settings."""
  random = np.random.default_rng(2)
  logits, prompts = random.normal(0, 1, (64, 20)).astype(np.float32), random.integers(0, 20, (62, 9))
  seen = find_prompt_tokens(list(prompts), 64, 20)
  expected = np.stack(
    [tiny.penalize_repetition(row, np.flatnonzero(row_seen), 1.7) for row, row_seen in zip(logits, seen)]
  )
  assert [set(np.flatnonzero(row_seen)) for row_seen in seen[:62]] == [set(prompt) for prompt in prompts]
  assert seen.dtype == bool and not seen[62:].any() and (expected.argmax(-1) != logits.argmax(-1)).any()
  np.testing.assert_allclose(penalize_repetition(logits, seen, 1.7), expected, rtol=1e-6)
  keys = jax.random.split(jax.random.key(0), 64)
  for settings in (dict(), dict(temperature=1.0, top_k=1), dict(temperature=9.0, min_p=1.0)):
    tokens = SAMPLE(logits, keys, jnp.arange(64), Sampling(**settings, repetition_penalty=1.7), seen)
    np.testing.assert_array_equal(tokens, expected.argmax(-1))


def test_nan_logits_are_marked():
  logits = jnp.full((2, 9), jnp.nan).at[1].set(0)
  for settings in (Sampling(), Sampling(0.7, min_p=0.1)):
    assert SAMPLE(logits, jax.random.split(jax.random.key(0), 2), jnp.arange(2), settings)[0] == 9


def test_keys_depend_on_prompt_seed_and_sample_number():
  data = lambda *args: jax.random.key_data(row_keys(*args)).tolist()  # noqa: E731
  a, b = np.array([1, 2], np.int32), np.array([2, 1], np.int64)
  assert data(0, [a, b], [0, 0]) == data(0, [a], [0]) + data(0, [b], [0])
  distinct = data(0, [a, a, b], [0, 1, 0]) + data(1, [a], [0])
  assert len({tuple(key) for key in distinct}) == 4
  assert data(0, [[1, 2]], [0]) == data(0, [a], [0])


def test_settings_compile_once():
  before = SAMPLE._cache_size()
  for settings in (Sampling(), Sampling(0.7), Sampling(0.7, 5), Sampling(1.0, 5, 0.5, 0.1, 1.3)):
    SAMPLE(jnp.zeros((2, 9)), jax.random.split(jax.random.key(0), 2), jnp.arange(2), settings)
  assert SAMPLE._cache_size() == before + 1


def test_settings_of_each_row_are_those_of_the_row_alone():
  """As for requests that share a batch: greedy, filtered and penalized rows beside each other."""
  draw = np.random.default_rng(0)
  settings = [
    Sampling(),
    Sampling(1.0),
    Sampling(0.7, top_k=3),
    Sampling(1.3, top_p=0.6),
    Sampling(1.0, min_p=0.2),
    Sampling(0.0, repetition_penalty=2.0),
    Sampling(2.0, 40, 0.9, 0.01, 1.3),
  ]
  together = jax.tree.map(lambda *values: np.array(values, np.asarray(values[0]).dtype), *settings)
  rows = len(settings)
  seen = draw.random((rows, 50)) < 0.3
  for seed in range(20):
    logits = draw.normal(0, 2, (rows, 50)).astype(np.float32)
    keys, positions = jax.random.split(jax.random.key(seed), rows), np.arange(rows)
    sampled = SAMPLE(logits, keys, positions, together, seen)
    for i, sampling in enumerate(settings):
      row = slice(i, i + 1)
      assert SAMPLE(logits[row], keys[row], positions[row], sampling, seen[row])[0] == sampled[i], sampling
