"""Feed-forward layers, norms, residuals, Canon layers and value residuals: shapes, causality, independence of
rows, caches, scan, gradients, meshes.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.conformance import collect
from tfm.conformance.cached import require_cached_equals_full, require_joined_rows_read_as_alone
from tfm.conformance.rows import PAD, row, rows
from tfm.conformance.sentences import (
  require_finite,
  require_influence,
  require_no_influence,
  require_same_logits,
)
from tfm.conformance.test_mesh import Sharded, axes, equal_on
from tfm.conformance.tiny import LENGTH, VOCAB, Tiny
from tfm.decoding.unroll_layers import unroll_layers
from tfm.mixers.protocol import Context
from tfm.norms.protocol import norm_factory
from tfm.residuals.protocol import PLACEMENTS


VARIANTS = [(slot, text) for slot in ('feed_forward', 'norm', 'residual') for text in collect.specs(slot)]
VARIANTS += [('canon', 'AC'), ('canon', 'ABCD')]
VARIANTS += [('value_residual', 'constant'), ('value_residual', 'gated'), ('own_keys', 'False')]
# One MLP is enough for a quick run; mixtures are in test_feed_forwards.py too. One of each residual is.
SLOW = [text for text in collect.specs('feed_forward') if text not in ('none', 'swiglu')]
SLOW += [text for text in collect.specs('residual') if '(' in text] + ['AC']
QUICK_FIRST = [
  pytest.param(slot, text, marks=[pytest.mark.slow] if text in SLOW else []) for slot, text in VARIANTS
]
TOKENS = np.random.default_rng(2).permutation(VOCAB)[:LENGTH]


def fields(slot, text):
  """The fields of a model with a variant; of `own_keys`, of one whose every other block has none."""
  if slot == 'own_keys':
    return dict(layers=3, pattern=('own', 'other'), blocks=dict(own={}, other=dict(own_keys=False)))
  return {slot: text}


tiny = functools.cache(lambda slot, text: Tiny(**fields(slot, text)))


def looks_ahead(slot, text):
  return slot == 'residual' and collect.variant(slot, text).looks_ahead


def needs_whole_rows(slot, text):
  """Whether the row decides what becomes of a token; a choice has no gradient."""
  return slot == 'feed_forward' and collect.variant(slot, text).reads_other_tokens


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize('slot, text', QUICK_FIRST)
class TestModel:
  @pytest.mark.sampled(5)
  def test_it_is_causal_and_gradients_are_finite(self, slot, text):
    gradients = tiny(slot, text).influence(np.arange(LENGTH), np.ones(LENGTH))
    require_finite(gradients, f'gradients of {text}')
    later = np.triu(np.ones((LENGTH, LENGTH), bool), 1)
    if looks_ahead(slot, text):
      require_influence(gradients, later, text)
    else:
      require_no_influence(gradients, later, text)
    require_influence(gradients, np.eye(LENGTH, dtype=bool), text)

  @pytest.mark.sampled(5)
  def test_packed_and_padded_documents_have_the_logits_of_each_alone(self, slot, text):
    a, b = TOKENS[:7], TOKENS[7:]
    packed, padded = row(a, b), row((PAD, 3), a, (PAD, 2))
    together, _ = tiny(slot, text)(*rows(packed, padded))
    alone, _ = tiny(slot, text)(*rows(row(a)))
    if not needs_whole_rows(slot, text):
      require_same_logits(together[0, packed[1][0]], alone[0], text, 'before another document in its row')
    require_same_logits(together[1, padded[1][0]], alone[0], text, 'between padding')

  @pytest.mark.sampled(5)
  def test_scanned_layers_equal_unrolled_layers(self, slot, text):
    scanned = tiny(slot, text)
    model, params = unroll_layers(scanned.model, scanned.params)
    assert 'layers' not in params['stack']
    tokens = jnp.asarray(TOKENS[None], jnp.int32)
    logits, _ = jax.jit(lambda params: model.apply({'params': params}, tokens, Context.contiguous(tokens)))(
      params
    )
    expected, _ = scanned(TOKENS[None], np.arange(LENGTH)[None], np.ones((1, LENGTH)))
    close(logits, expected)

  @pytest.mark.sampled(0)
  def test_the_mesh_changes_nothing(self, slot, text):
    equal_on(Sharded(**fields(slot, text)), axes((2, 2, 2)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
  'slot, text',
  [
    # Feed-forward layers and norms see one token at a time.
    pytest.param(
      slot, text, marks=[pytest.mark.slow] if slot in ('feed_forward', 'norm') or text in SLOW else []
    )
    for slot, text in VARIANTS
    if not looks_ahead(slot, text) and not needs_whole_rows(slot, text)
  ],
)
def test_what_is_read_through_a_cache_has_the_logits_of_the_full_pass(slot, text):
  require_cached_equals_full(tiny(slot, text), text)
  require_joined_rows_read_as_alone(tiny(slot, text), text)


@pytest.mark.parametrize('text', collect.specs('norm'))
class TestNorm:
  X = np.random.default_rng(0).standard_normal((2, 3, 16))

  @pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16], ids=str)
  def test_shape_and_dtype_are_kept(self, text, dtype):
    x = jnp.asarray(self.X, dtype)
    y, _ = norm_factory(text, bias=True)().init_with_output(jax.random.key(0), x)
    assert y.shape == x.shape and y.dtype == dtype

  def test_vectors_are_normalized_independently(self, text):
    x = jnp.asarray(self.X, jnp.float32)
    norm = norm_factory(text, bias=True)()
    params = norm.init(jax.random.key(0), x)
    changed = norm.apply(params, x.at[0, 1].add(1.0)) != norm.apply(params, x)
    assert changed[0, 1].any() and changed.sum() == changed[0, 1].sum()

  def test_gradients_are_finite_at_zero_and_at_constants(self, text):
    x = jnp.stack([jnp.zeros(16), jnp.ones(16), 1e4 * jnp.ones(16)])
    norm = norm_factory(text, bias=True)()
    params = norm.init(jax.random.key(0), x)
    assert all(
      jnp.isfinite(g).all()
      for g in jax.tree.leaves(jax.grad(lambda params, x: norm.apply(params, x).sum(), (0, 1))(params, x))
    )


@pytest.mark.parametrize('name', collect.variants('residual'))
def test_a_residual_declares_known_placements_and_branches(name):
  kind = collect.variant('residual', name)
  assert kind.placements and set(kind.placements) <= set(PLACEMENTS)
  assert kind.required_branches is None or set(kind.required_branches) <= {'mixer', 'cross', 'feed_forward'}
