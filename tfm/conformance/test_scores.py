"""Scores and positions can be evaluated block by block and in any order: what a blockwise kernel needs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import spec
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import collect
from tfm.conformance.tiny import apply_with_random_params, config
from tfm.layers.locations import Locations


B, T, S, H, K, C, D = 2, 6, 10, 4, 2, 4, 16
DRAW = np.random.default_rng(0)
Q, KEY = (
  jnp.asarray(DRAW.standard_normal(shape), jnp.float32) for shape in ((B, K, H // K, T, C), (B, K, S, C))
)
Q_AT = jnp.asarray(DRAW.integers(0, 12, (B, T)), jnp.int32)
K_AT = jnp.asarray(DRAW.integers(0, 12, (B, S)), jnp.int32)


def score(text):
  return apply_with_random_params(
    spec.factory(text, *collect.SLOTS['score'], head_width=C), lambda result: result()
  )


def position(text, evaluate):
  c = config(position=text)
  return apply_with_random_params(assemble.build_position(Experiment(c), 'model', c.model), evaluate)


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
      return position(text, lambda result: (result.embed(x, at), *result.rotate(q, k, at, at)))

    straight = evaluate(x, heads, keys, K_AT)
    shuffled = evaluate(x[:, order], heads[:, order], keys[:, order], K_AT[:, order])
    for a, b, like in zip(straight, shuffled, (x, heads, keys)):
      assert a.shape == like.shape and a.dtype == like.dtype
      close(a[:, order], b)

  def test_compute_type_is_kept(self, text):
    x = jnp.ones((B, S, D), jnp.bfloat16)
    heads, keys = jnp.ones((B, S, H, C), jnp.bfloat16), jnp.ones((B, S, K, C), jnp.bfloat16)
    out = position(text, lambda result: (result.embed(x, K_AT), *result.rotate(heads, keys, K_AT, K_AT)))
    assert all(y.dtype == jnp.bfloat16 for y in out)

  @pytest.mark.sampled(12)
  def test_a_block_of_the_bias_is_the_bias_of_the_block(self, text):
    bias = position(text, lambda result: result.bias(result.compute_table()))
    if bias is None:
      pytest.skip('adds nothing to the logits')
    assert isinstance(bias, jax.tree_util.Partial)

    def values(q, k, q_at, k_at):
      shape = (B, K, H // K, q.shape[3], k.shape[2])
      at = (Locations(positions, jnp.ones_like(positions)) for positions in (q_at, k_at))
      arguments = jax.jit(lambda bias: bias(q, k, *at))(bias)
      assert arguments.ndim == 5  # rank promotion is an error
      return np.broadcast_to(arguments, shape)

    whole, block = (
      values(Q, KEY, Q_AT, K_AT),
      values(Q[..., 2:5, :], KEY[:, :, 4:7], Q_AT[:, 2:5], K_AT[:, 4:7]),
    )
    is_blockwise = np.allclose(block, whole[..., 2:5, 4:7], rtol=1e-5, atol=1e-6)
    declared = collect.variant('position', text).has_blockwise_bias
    assert is_blockwise == declared, (
      f'{text}: the bias of keys 4–6 {"is the same" if is_blockwise else "changes"} without the other keys, '
      f'and has_blockwise_bias={declared}'
    )
    order = np.random.default_rng(3).permutation(S)
    close(values(Q, KEY[:, :, order], Q_AT, K_AT[:, order]), whole[..., order])
