"""Masks: one predicate for host and device, closed under & | ~, equal where the specs are equal."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance import collect
from tfm.masks.protocol import density, is_causal, table

TEXTS = collect.specs('mask')
COMBINED = TEXTS + [f'~({text})' for text in TEXTS] + [
  f'({a}) {op} ({b})' for a, b in itertools.combinations(TEXTS, 2) for op in '&|']
Q = np.random.default_rng(0).integers(0, 40, (2, 9, 1))
K = np.random.default_rng(1).integers(0, 40, (2, 1, 13))


@pytest.mark.parametrize('text', COMBINED)
def test_host_and_device_agree(text):
  mask = collect.mask(text)
  host = mask(Q, K)
  assert isinstance(host, np.ndarray)  # planned on the host: nothing may go to a device
  assert host.dtype == bool and host.shape == (2, 9, 13)
  device = mask(jnp.asarray(Q), jnp.asarray(K))
  assert device.dtype == bool
  np.testing.assert_array_equal(host, device)
  traced = jax.jit(lambda q, k: mask(q, k))(jnp.asarray(Q), jnp.asarray(K))
  np.testing.assert_array_equal(host, traced)


@pytest.mark.parametrize('text', TEXTS)
def test_a_mask_knows_positions_and_no_indices(text):
  mask = collect.mask(text)
  pairs = {(q, k): bool(mask(np.array([q]), np.array([k]))[0]) for q in range(12) for k in range(12)}
  np.testing.assert_array_equal(table(mask, 12), [[pairs[q, k] for k in range(12)] for q in range(12)])
  order = np.random.default_rng(2).permutation(12)
  np.testing.assert_array_equal(mask(order[:, None], order[None, :]), table(mask, 12)[order][:, order])


@pytest.mark.parametrize('a, b', list(itertools.product(TEXTS, TEXTS)))
def test_algebra(a, b):
  x, y = table(collect.mask(a), 12), table(collect.mask(b), 12)
  for text, truth in ((f'({a}) & ({b})', x & y), (f'({a}) | ({b})', x | y), (f'~({a})', ~x),
                      (f'~({a}) & ({b})', ~x & y), (f'({a}) | ~(({b}) & ({a}))', x | ~(y & x))):
    np.testing.assert_array_equal(table(collect.mask(text), 12), truth, err_msg=text)


@pytest.mark.parametrize('text', COMBINED)
def test_equal_specs_are_equal_objects(text):
  one, same = collect.mask(text), collect.mask(text)
  assert one == same and hash(one) == hash(same) and one is not same
  assert one != collect.mask(f'~({text})')
  with pytest.raises((AttributeError, TypeError)):
    one.anything = 1  # frozen


@pytest.mark.parametrize('text', TEXTS)
def test_static_arguments_compile_once(text):
  traced = []
  @functools.partial(jax.jit, static_argnums=0)
  def seen(mask, q, k):
    traced.append(mask)
    return mask(q, k)
  q, k = jnp.asarray(Q), jnp.asarray(K)
  seen(collect.mask(text), q, k), seen(collect.mask(text), q, k)
  assert len(traced) == 1
  seen(collect.mask(f'~({text})'), q, k)
  assert len(traced) == 2


def test_all_masks_differ():
  masks = [collect.mask(text) for text in TEXTS]
  assert len(set(masks)) == len(TEXTS)


def test_operators_refuse_what_is_no_mask():
  with pytest.raises(TypeError):
    collect.mask('causal') & True


def test_causality_is_seen_however_far_ahead_a_mask_looks():
  # Within the first positions this mask is as blind as a causal one.
  assert not is_causal(collect.mask('causal | ~window(600)'), 1024)
  assert is_causal(collect.mask('causal & window(600)'), 1024)
  assert is_causal(collect.mask('causal | ~window(600)'), 600)


def test_density():
  assert density(collect.mask('causal'), 10) == 0.55
  assert density(collect.mask('causal & window(1)'), 10) == 0.19
