"""The blockwise kernel: what it visits, what it keeps, what it tells."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.kernels
from tests.conformance import collect
from tfm import spec
from tfm.kernels._blockwise import Blocks, plan
from tfm.kernels.protocol import Kernel
from tfm.masks.protocol import Mask, table


B, T, H, K, C = 2, 48, 4, 2, 8
CHUNKED = 'chunked(queries=8, keys=16)'


def kernel(text):
  return spec.build(text, tfm.kernels, Kernel)


def arrays(T=T, S=None, seed=0):
  draw = np.random.default_rng(seed)
  return (
    jnp.asarray(draw.standard_normal((B, n, heads, C)), jnp.float32)
    for n, heads in ((T, H), (S or T, K), (S or T, K))
  )


def attention_inputs(mask='causal', T=T, S=None, layout='contiguous', **more):
  at = jnp.broadcast_to(jnp.arange(S or T), (B, S or T))
  ones = jnp.ones_like(at)
  score = spec.factory('dot', *collect.SLOTS['score'], head_width=C)().apply({})
  mask = collect.mask(mask) if isinstance(mask, str) else mask
  return (
    dict(
      score=score,
      bias=None,
      mask=mask,
      q_positions=at[:, :T],
      k_positions=at,
      q_segments=ones[:, :T],
      k_segments=ones,
      layout=layout,
    )
    | more
  )


def visited(mask, layout, blocks):
  """[blocks of queries, blocks of keys]: 0 not visited, 1 the mask is asked, 2 wholly open."""
  rows, columns = plan(collect.mask(mask), layout, blocks)
  found = np.zeros(blocks.shape, int)
  for i in range(blocks.shape[0]):
    line = slice(rows.starts[i], rows.starts[i + 1])
    found[i, rows.others[line]] = 1 + rows.open[line]
  turned = np.zeros(blocks.shape[::-1], int)
  for j in range(blocks.shape[1]):
    line = slice(columns.starts[j], columns.starts[j + 1])
    turned[j, columns.others[line]] = 1 + columns.open[line]
  np.testing.assert_array_equal(found, turned.T)
  return found


@pytest.mark.parametrize(
  'text', collect.specs('mask') + ['causal & window(9)', '~causal', 'full & ~window(30)']
)
def test_visits_what_the_mask_shows_and_no_more(text):
  blocks = Blocks(8, 12, 48, 48)
  cells = table(collect.mask(text), 48).reshape(6, 8, 4, 12).swapaxes(1, 2)
  found = visited(text, 'contiguous', blocks)
  if collect.mask(text).required_fields:
    assert (found[cells.any((2, 3))] > 0).all() and not (found == 2)[~cells.all((2, 3))].any()
  else:
    np.testing.assert_array_equal(found, cells.any((2, 3)).astype(int) + cells.all((2, 3)))


def test_packed_rows_are_planned_for_relative_masks():
  blocks = Blocks(8, 8, 48, 48)
  np.testing.assert_array_equal(
    visited('causal & window(9)', 'packed', blocks), visited('causal & window(9)', 'contiguous', blocks)
  )
  assert (
    visited('causal', 'arbitrary', blocks).all() and not (visited('causal', 'arbitrary', blocks) == 2).any()
  )


def test_a_block_that_is_not_visited_is_not_touched():
  q, k, v = arrays()
  spoilt = (k.at[:, 16:32].set(jnp.nan), v.at[:, 16:32].set(jnp.nan))
  mask = 'causal & window(7)'
  out = jax.jit(lambda *qkv: kernel(CHUNKED)(*qkv, **attention_inputs(mask)))(q, *spoilt)
  expected = jax.jit(lambda *qkv: kernel('dense')(*qkv, **attention_inputs(mask)))(q, k, v)
  clean = np.r_[0:16, 40:48]  # the queries whose blocks of keys are sound
  np.testing.assert_allclose(out[:, clean], expected[:, clean], rtol=1e-5, atol=1e-6)
  gradient = jax.jit(
    jax.grad(lambda q: kernel(CHUNKED)(q, *spoilt, **attention_inputs(mask))[:, clean].sum())
  )(q)
  assert np.isfinite(gradient[:, clean]).all()


def test_documents_that_do_not_meet_are_skipped():
  q, k, v = arrays()
  segments = jnp.asarray([[1] * 16 + [2] * 32, [1] * 16 + [2] * 16 + [0] * 16])
  v = v.at[:, :16].set(jnp.nan)
  out = jax.jit(
    lambda *qkv: kernel(CHUNKED)(
      *qkv, **attention_inputs('full', layout='packed', q_segments=segments, k_segments=segments)
    )
  )(q, k, v)
  assert np.isfinite(out[:, 16:]).all() and np.isnan(out[:, :16]).all()


@pytest.mark.slow
def test_the_mask_is_not_asked_where_it_shows_everything():
  @dataclasses.dataclass(frozen=True)
  class Lying(Mask):
    """Open by its bounds, and closed when it is asked."""

    relative = True

    def __call__(self, q, k):
      return k < q - 100 if isinstance(k, jax.Array) else k <= q

  q, k, v = arrays()
  out = kernel(CHUNKED)(q, k, v, **attention_inputs(Lying()))
  assert not out[:, :16].any()  # blocks on the diagonal ask
  whole = kernel('dense')(
    q[:, 40:], k, v, **attention_inputs('full', T=8, S=48) | dict(q_positions=jnp.full((B, 8), 40))
  )
  part = kernel('dense')(q[:, 40:], k[:, :32], v[:, :32], **attention_inputs('full', T=8, S=32))
  np.testing.assert_allclose(out[:, 40:], part, rtol=1e-5, atol=1e-6)
  assert np.abs(whole - part).max() > 0.01


@pytest.mark.parametrize(
  'fields', [{}, dict(sinks=True), dict(soft_cap=2.0)], ids=['plain', 'sinks', 'soft cap']
)
@pytest.mark.parametrize('mask', ['causal', '~causal', 'causal & window(3)'])
def test_rows_of_weights_come_back_from_the_log_sum_exp(mask, fields):
  q, k, v = arrays()
  if 'sinks' in fields:
    fields = dict(sinks=jnp.asarray([0.3, -1.0, 2.0, 0.0]))
  inputs = attention_inputs(mask, **fields)
  out, lse = kernel(CHUNKED).with_log_sum_exp(q, k, v, **inputs)
  same, expected = kernel('dense').with_log_sum_exp(q, k, v, **inputs)
  np.testing.assert_allclose(out, same, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(lse, expected, rtol=1e-5, atol=1e-5)
  rows = jnp.asarray([5, 30])  # two queries' weights, and not the others'
  weights = kernel('dense').weights(
    q[:, rows],
    k,
    lse[:, :, rows],
    **inputs | dict(q_positions=inputs['q_positions'][:, rows], q_segments=inputs['q_segments'][:, rows]),
  )
  assert weights.shape == (B, H, 2, T)
  recovered = jnp.einsum('BHTS,BSHC->BTHC', weights, jnp.repeat(v, H // K, 2))
  np.testing.assert_allclose(recovered, out[:, rows], rtol=1e-4, atol=1e-5)


def test_the_log_sum_exp_has_a_gradient():
  q, k, v = arrays()
  sinks = jnp.asarray([0.3, -1.0, 2.0, 0.0])

  def loss(text):
    def f(q, k, sinks):
      out, lse = kernel(text).with_log_sum_exp(q, k, v, **attention_inputs('causal', sinks=sinks))
      return jnp.sin(out).sum() + jnp.cos(lse).sum()

    return jax.jit(jax.grad(f, (0, 1, 2)))(q, k, sinks)

  for a, b in zip(loss(CHUNKED), loss('dense')):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_sigmoid_has_no_log_sum_exp():
  with pytest.raises(ValueError, match="normalizer='sigmoid' has no log-sum-exp"):
    kernel('chunked').with_log_sum_exp(*arrays(), **attention_inputs(normalizer='sigmoid'))


@pytest.mark.parametrize('bias', [False, True], ids=['plain', 'learned bias'])
def test_memory_grows_with_length_and_not_with_its_square(bias):
  """What the compiler sets aside, forward and backward, for four times the length."""

  def temporary(T, text):
    def by_distance(table, q, k, q_at, k_at):
      return table[jnp.clip(q_at[:, :, None] - k_at[:, None, :], 0, 7)][:, None, None]

    def loss(q, k, v, table):
      inputs = (
        attention_inputs('causal', T=T) | dict(bias=jax.tree_util.Partial(by_distance, table))
        if bias
        else attention_inputs('causal', T=T)
      )
      return kernel(text)(q, k, v, **inputs).sum()

    step = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    return step.lower(*arrays(T), jnp.zeros(8)).compile().memory_analysis().temp_size_in_bytes

  chunked = [temporary(T, 'chunked(queries=64, keys=64)') for T in (512, 2048)]
  dense = [temporary(T, 'dense') for T in (512, 2048)]
  assert chunked[1] < 6 * chunked[0] and dense[1] > 12 * dense[0]


@pytest.mark.parametrize('text', ['chunked(0)', 'chunked(keys=-1)'])
def test_a_block_has_tokens(text):
  with pytest.raises(ValueError, match='must be at least 1 token'):
    kernel(text)
