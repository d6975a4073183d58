"""Scores and positions can be evaluated block by block and in any order: what a blockwise kernel needs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import spec
from tfm.conformance import collect
from tfm.conformance.biases import (
  DRAW,
  K_AT,
  KEY,
  Q_AT,
  B,
  C,
  H,
  K,
  Q,
  S,
  T,
  apply_position,
  compute_bias,
  find_bias_fault,
)
from tfm.conformance.tiny import apply_with_random_params


D = 16


def score(text):
  return apply_with_random_params(
    spec.factory(text, *collect.SLOTS['score'], head_width=C), lambda result: result()
  )


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('text', collect.specs('score'))
class TestScore:
  def test_logits_are_float32_and_shaped(self, text):
    for dtype in (jnp.float32, jnp.bfloat16):
      logits = score(text)(Q.astype(dtype), KEY.astype(dtype))
      assert logits.shape == (B, K, H // K, T, S) and logits.dtype == jnp.float32

  def test_a_block_of_the_logits_is_the_logits_of_the_block(self, text):
    f = score(text)
    close(f(Q[..., 2:5, :], KEY[:, :, 4:7]), f(Q, KEY)[..., 2:5, 4:7])

  def test_a_query_head_meets_the_key_head_of_its_group_only(self, text):
    f = score(text)
    changed = f(Q.at[:, 1, 0].add(1.0), KEY) != f(Q, KEY)
    assert changed[:, 1, 0].any() and changed.sum() == changed[:, 1, 0].sum()
    changed = f(Q, KEY.at[:, 1].add(1.0)) != f(Q, KEY)
    assert changed[:, 1].any() and not changed[:, 0].any()

  def test_learned_parameters_are_leaves_and_it_travels_through_jit(self, text):
    f = score(text)
    assert isinstance(f, jax.tree_util.Partial)
    close(jax.jit(lambda f, q, k: f(q, k))(f, Q, KEY), f(Q, KEY))
    grads = jax.grad(lambda f: jnp.sin(f(Q, KEY)).sum(), allow_int=True)(f)
    assert all(np.abs(g).sum() > 0 for g in jax.tree.leaves(grads) if jnp.issubdtype(g.dtype, jnp.floating))


@pytest.mark.parametrize('text', collect.specs('position'))
class TestPosition:
  @pytest.mark.sampled(10)
  def test_embed_and_rotate_know_no_order_but_the_positions(self, text):
    x = jnp.asarray(DRAW.standard_normal((B, S, D)), jnp.float32)
    heads, keys = (jnp.asarray(DRAW.standard_normal((B, S, n, C)), jnp.float32) for n in (H, K))
    order = np.random.default_rng(3).permutation(S)

    def evaluate(x, q, k, at):
      return apply_position(text, lambda result: (result.embed(x, at), *result.rotate(q, k, at, at)))

    straight = evaluate(x, heads, keys, K_AT)
    shuffled = evaluate(x[:, order], heads[:, order], keys[:, order], K_AT[:, order])
    for a, b, like in zip(straight, shuffled, (x, heads, keys)):
      assert a.shape == like.shape and a.dtype == like.dtype
      close(a[:, order], b)

  def test_compute_type_is_kept(self, text):
    x = jnp.ones((B, S, D), jnp.bfloat16)
    heads, keys = jnp.ones((B, S, H, C), jnp.bfloat16), jnp.ones((B, S, K, C), jnp.bfloat16)
    out = apply_position(
      text, lambda result: (result.embed(x, K_AT), *result.rotate(heads, keys, K_AT, K_AT))
    )
    assert all(y.dtype == jnp.bfloat16 for y in out)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
  'text',
  [text for text in collect.specs('position') if 'bias' in collect.variant('position', text).active_hooks()],
)
def test_a_block_of_the_bias_is_the_bias_of_the_block(text):
  assert not find_bias_fault(text), find_bias_fault(text)
  order = np.random.default_rng(3).permutation(S)
  shuffled = compute_bias(text, Q, KEY[:, :, order], Q_AT, K_AT[:, order])
  if collect.variant('position', text).has_blockwise_bias:
    close(shuffled, compute_bias(text, Q, KEY, Q_AT, K_AT)[..., order])
