"""Masks: one predicate for host and device, closed under & | ~, equal where the specs are equal."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.conformance import collect
from tfm.conformance.sentences import find_mask_fault
from tfm.masks.protocol import density, is_causal, table


TEXTS = collect.specs('mask')
# Each with the masks that it is made of: a combination is tried only if each of them passed alone.
COMBINED = (
  [pytest.param(text, (), id=text) for text in TEXTS]
  + [pytest.param(f'~({text})', (text,), id=f'~({text})') for text in TEXTS]
  + [
    pytest.param(f'({a}) {op} ({b})', (a, b), id=f'({a}) {op} ({b})')
    for a, b in itertools.combinations(TEXTS, 2)
    for op in '&|'
  ]
)
Q = np.random.default_rng(0).integers(0, 40, (2, 9, 1))
K = np.random.default_rng(1).integers(0, 40, (2, 1, 13))


def known(text):
  """The mask with a prefix of 5 in every document, for masks that need one."""
  return collect.mask(text).bind_prefix(5)


@pytest.fixture
def passed_alone(parts):
  """Skips combinations of masks that fail alone, which would only repeat the failure."""
  for text in parts:
    if fault := find_mask_fault(text):
      pytest.skip(f'one of its masks fails alone: {fault}')


@pytest.mark.parametrize('text', TEXTS)
def test_a_mask_is_a_predicate_on_positions_as_it_declares(text):
  assert not find_mask_fault(text), find_mask_fault(text)


@pytest.mark.sampled(50)
@pytest.mark.parametrize('text, parts', COMBINED)
@pytest.mark.usefixtures('passed_alone')
def test_host_and_device_agree(text, parts):
  mask = known(text)
  host = mask(Q, K)
  assert isinstance(host, np.ndarray)  # planned on the host: nothing may go to a device
  assert host.dtype == bool and host.shape == (2, 9, 13), (
    f'{text}: of queries {Q.shape}, keys {K.shape} the mask is {host.dtype}{list(host.shape)}; it must be '
    'bool[2, 9, 13]; compare q with k, which broadcast'
  )
  device = mask(jnp.asarray(Q), jnp.asarray(K))
  assert device.dtype == bool
  np.testing.assert_array_equal(host, device)
  traced = jax.jit(lambda q, k: mask(q, k))(jnp.asarray(Q), jnp.asarray(K))
  np.testing.assert_array_equal(host, traced)


@pytest.mark.parametrize('text', TEXTS)
def test_the_order_of_positions_does_not_matter(text):
  mask = known(text)
  order = np.random.default_rng(2).permutation(12)
  np.testing.assert_array_equal(mask(order[:, None], order[None, :]), table(mask, 12)[order][:, order])


@pytest.mark.parametrize('parts', list(itertools.product(TEXTS, TEXTS)), ids=' with '.join)
@pytest.mark.usefixtures('passed_alone')
def test_algebra(parts):
  a, b = parts
  x, y = table(known(a), 12), table(known(b), 12)
  for text, truth in (
    (f'({a}) & ({b})', x & y),
    (f'({a}) | ({b})', x | y),
    (f'~({a})', ~x),
    (f'~({a}) & ({b})', ~x & y),
    (f'({a}) | ~(({b}) & ({a}))', x | ~(y & x)),
  ):
    np.testing.assert_array_equal(table(known(text), 12), truth, err_msg=text)


@pytest.mark.parametrize('text, parts', COMBINED)
@pytest.mark.usefixtures('passed_alone')
def test_equal_specs_are_equal_objects(text, parts):
  one, same = collect.mask(text), collect.mask(text)
  assert one == same and hash(one) == hash(same) and one is not same
  assert one != collect.mask(f'~({text})')
  with pytest.raises((AttributeError, TypeError)):
    one.anything = 1  # frozen


@pytest.mark.parametrize('text', TEXTS)
def test_static_arguments_compile_once(text):
  traced = []

  @functools.partial(jax.jit, static_argnums=0)
  def seen(mask, q, k, prefix):
    traced.append(mask)
    return mask.bind_prefix(prefix)(q, k)

  calls = jnp.asarray(Q), jnp.asarray(K), jnp.full((1, 1, 1), 5)
  seen(collect.mask(text), *calls), seen(collect.mask(text), *calls)
  assert len(traced) == 1
  seen(collect.mask(f'~({text})'), *calls)
  assert len(traced) == 2


@pytest.mark.parametrize('layout', ['contiguous', 'packed', 'arbitrary'])
@pytest.mark.parametrize('text, parts', COMBINED)
@pytest.mark.usefixtures('passed_alone')
def test_bounds_hold_whatever_the_data(text, parts, layout):
  """Wherever documents of a row of 12 tokens begin, whatever their prefix: what is certain is seen, and no
  more than what is possible.
  """
  mask, index = collect.mask(text), np.arange(12)
  q, k = index[:, None], index[None, :]
  certain, possible = mask.bounds(q, k, layout)
  assert certain.shape == possible.shape == (12, 12)
  assert not (certain & ~possible).any()
  for start in (0,) if layout == 'contiguous' else (0, 1, 3, 7):
    for prefix in (0, 2, 5, 12):
      positions = index - start  # of the document that begins at `start`
      if layout == 'arbitrary':
        positions = np.random.default_rng(start).permutation(12)
      seen = np.broadcast_to(mask.bind_prefix(prefix)(positions[:, None], positions[None, :]), (12, 12))
      within = (positions[:, None] >= 0) & (positions[None, :] >= 0)
      for wrong, claim in ((certain & ~seen, 'certainly sees'), (seen & ~possible, 'cannot see')):
        pairs = np.argwhere(wrong & within)
        assert not len(pairs), (
          '{}: bounds for the {} layout say that query {} {} key {}, which is not so'.format(
            text, layout, pairs[0][0], claim, pairs[0][1]
          )
        )
  if mask.relative and layout != 'arbitrary' or layout == 'contiguous' and not mask.required_fields:
    np.testing.assert_array_equal(certain, possible)  # no pair is left undecided that bounds could decide


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
  assert is_causal(collect.mask('prefix'), 12)  # as far as there is no prefix


def test_density():
  assert density(collect.mask('causal'), 10) == 0.55
  assert density(collect.mask('causal & window(1)'), 10) == 0.19
  assert density(collect.mask('full'), 10) == 1
  assert density(collect.mask('causal'), 10_000) == 0.50005  # counted in several pieces
