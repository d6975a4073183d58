"""The blockwise kernel: visited blocks, memory, log-sum-exp."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm.kernels
from tfm import spec
from tfm.conformance import collect
from tfm.kernels import _block_plan
from tfm.kernels._block_plan import BlockGrid, BlockSizes, plan_visits
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


def visit_table(mask, layout, grid):
  """[query blocks, key blocks]: 0 not visited, 1 the mask is evaluated, 2 the mask shows every pair."""
  key_visits, query_visits = plan_visits(collect.mask(mask), layout, grid)
  by_query = np.zeros(grid.shape, int)
  for i in range(grid.shape[0]):
    line = slice(key_visits.starts[i], key_visits.starts[i + 1])
    by_query[i, key_visits.blocks[line]] = 1 + key_visits.fully_visible[line]
  by_key = np.zeros(grid.shape[::-1], int)
  for j in range(grid.shape[1]):
    line = slice(query_visits.starts[j], query_visits.starts[j + 1])
    by_key[j, query_visits.blocks[line]] = 1 + query_visits.fully_visible[line]
  np.testing.assert_array_equal(by_query, by_key.T)
  return by_query


@pytest.mark.parametrize(
  'text', collect.specs('mask') + ['causal & window(9)', '~causal', 'full & ~window(30)']
)
def test_visits_exactly_the_blocks_that_the_mask_shows(text):
  grid = BlockGrid(8, 12, 48, 48)
  cells = table(collect.mask(text), 48).reshape(6, 8, 4, 12).swapaxes(1, 2)
  visits = visit_table(text, 'contiguous', grid)
  if collect.mask(text).required_fields:
    assert (visits[cells.any((2, 3))] > 0).all() and not (visits == 2)[~cells.all((2, 3))].any()
  else:
    np.testing.assert_array_equal(visits, cells.any((2, 3)).astype(int) + cells.all((2, 3)))


@pytest.mark.parametrize('pairs_at_once', [1, 250, 2**22])
@pytest.mark.parametrize('layout', ['contiguous', 'packed', 'arbitrary'])
@pytest.mark.parametrize('text', ['causal & window(9)', 'causal & (window(5) | global_tokens(3))', 'prefix'])
def test_blocks_of_any_tokens_are_classified_pair_by_pair(text, layout, pairs_at_once, monkeypatch):
  """Blocks of neighbors, also the same ones again, and blocks of tokens from anywhere."""
  monkeypatch.setattr(_block_plan, 'PAIRS', pairs_at_once)
  draw, mask = np.random.default_rng(0), collect.mask(text)
  queries, keys = (
    np.concatenate([np.arange(48).reshape(-1, size), draw.integers(0, 48, (3, size)), np.arange(size)[None]])
    for size in (6, 8)
  )
  visible, fully_visible = _block_plan.classify_blocks(mask, layout, queries, keys)
  for i, j in np.ndindex(visible.shape):
    certain, possible = mask.bounds(queries[i][:, None], keys[j][None], layout)
    assert visible[i, j] == possible.any() and fully_visible[i, j] == certain.all(), (i, j)


def test_relative_masks_skip_blocks_of_packed_rows():
  grid = BlockGrid(8, 8, 48, 48)
  np.testing.assert_array_equal(
    visit_table('causal & window(9)', 'packed', grid), visit_table('causal & window(9)', 'contiguous', grid)
  )
  assert (
    visit_table('causal', 'arbitrary', grid).all()
    and not (visit_table('causal', 'arbitrary', grid) == 2).any()
  )


def test_unvisited_blocks_are_not_read():
  q, k, v = arrays()
  with_nan = (k.at[:, 16:32].set(jnp.nan), v.at[:, 16:32].set(jnp.nan))
  mask = 'causal & window(7)'
  out = jax.jit(lambda *qkv: kernel(CHUNKED)(*qkv, **attention_inputs(mask)))(q, *with_nan)
  expected = jax.jit(lambda *qkv: kernel('dense')(*qkv, **attention_inputs(mask)))(q, k, v)
  clean = np.r_[0:16, 40:48]  # queries whose key blocks have no NaN
  np.testing.assert_allclose(out[:, clean], expected[:, clean], rtol=1e-5, atol=1e-6)
  gradient = jax.jit(
    jax.grad(lambda q: kernel(CHUNKED)(q, *with_nan, **attention_inputs(mask))[:, clean].sum())
  )(q)
  assert np.isfinite(gradient[:, clean]).all()


def test_blocks_without_a_common_document_are_skipped():
  q, k, v = arrays()
  segments = jnp.asarray([[1] * 16 + [2] * 32, [1] * 16 + [2] * 16 + [0] * 16])
  v = v.at[:, :16].set(jnp.nan)
  out = jax.jit(
    lambda *qkv: kernel(CHUNKED)(
      *qkv, **attention_inputs('full', layout='packed', q_segments=segments, k_segments=segments)
    )
  )(q, k, v)
  assert np.isfinite(out[:, 16:]).all() and np.isnan(out[:, :16]).all()


@pytest.mark.parametrize('mask', ['full', 'causal'])
def test_documents_hide_pairs_that_the_mask_shows(mask):
  """Blocks of one document in both rows, in one row alone, of several documents, and of padding."""
  qkv = tuple(arrays())
  segments = jnp.asarray([[1] * 48, [1] * 20 + [2] * 20 + [0] * 8])
  inputs = attention_inputs(mask, layout='packed', q_segments=segments, k_segments=segments)

  def value_and_gradients(name):
    out, vjp = jax.vjp(lambda *qkv: kernel(name)(*qkv, **inputs), *qkv)
    return out, *vjp(qkv[0])

  for actual, expected in zip(
    *(jax.jit(value_and_gradients, static_argnums=0)(x) for x in (CHUNKED, 'dense'))
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_mask_is_not_evaluated_in_fully_visible_blocks():
  @dataclasses.dataclass(frozen=True)
  class InconsistentMask(Mask):
    """Its bounds show every pair, and its evaluation in the kernel none."""

    relative = True

    def __call__(self, q, k):
      return k < q - 100 if isinstance(k, jax.Array) else k <= q

  q, k, v = arrays()
  out = kernel(CHUNKED)(q, k, v, **attention_inputs(InconsistentMask()))
  assert not out[:, :16].any()  # blocks on the diagonal evaluate the mask
  whole = kernel('dense')(
    q[:, 40:], k, v, **attention_inputs('full', T=8, S=48) | dict(q_positions=jnp.full((B, 8), 40))
  )
  part = kernel('dense')(q[:, 40:], k[:, :32], v[:, :32], **attention_inputs('full', T=8, S=32))
  np.testing.assert_allclose(out[:, 40:], part, rtol=1e-5, atol=1e-6)
  assert np.abs(whole - part).max() > 0.01


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
  'fields', [{}, dict(sinks=True), dict(soft_cap=2.0)], ids=['plain', 'sinks', 'soft cap']
)
@pytest.mark.parametrize('mask', ['causal', '~causal', 'causal & window(3)'])
def test_log_sum_exp_recovers_chosen_rows_of_weights(mask, fields):
  q, k, v = arrays()
  if 'sinks' in fields:
    fields = dict(sinks=jnp.asarray([0.3, -1.0, 2.0, 0.0]))
  inputs = attention_inputs(mask, **fields)
  out, lse = kernel(CHUNKED).with_log_sum_exp(q, k, v, **inputs)
  same, expected = kernel('dense').with_log_sum_exp(q, k, v, **inputs)
  np.testing.assert_allclose(out, same, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(lse, expected, rtol=1e-5, atol=1e-5)
  rows = jnp.asarray([5, 30])  # the weights of two queries only
  weights = kernel('dense').weights(
    q[:, rows],
    k,
    lse[:, :, rows],
    **inputs | dict(q_positions=inputs['q_positions'][:, rows], q_segments=inputs['q_segments'][:, rows]),
  )
  assert weights.shape == (B, H, 2, T)
  recovered = jnp.einsum('BHTS,BSHC->BTHC', weights, jnp.repeat(v, H // K, 2))
  np.testing.assert_allclose(recovered, out[:, rows], rtol=1e-4, atol=1e-5)


def test_log_sum_exp_has_a_gradient():
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


@pytest.mark.slow
@pytest.mark.parametrize('bias', [False, True], ids=['plain', 'learned bias'])
def test_memory_is_linear_in_length(bias):
  """Temporary memory of forward and backward pass, as compiled, for four times the length."""

  def temporary_bytes(T, text):
    def by_distance(table, q, k, q_at, k_at):
      return table[jnp.clip(q_at.positions[:, :, None] - k_at.positions[:, None, :], 0, 7)][:, None, None]

    def loss(q, k, v, table):
      inputs = (
        attention_inputs('causal', T=T) | dict(bias=jax.tree_util.Partial(by_distance, table))
        if bias
        else attention_inputs('causal', T=T)
      )
      return kernel(text)(q, k, v, **inputs).sum()

    step = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    return step.lower(*arrays(T), jnp.zeros(8)).compile().memory_analysis().temp_size_in_bytes

  chunked = [temporary_bytes(T, 'chunked(queries=64, keys=64)') for T in (512, 2048)]
  dense = [temporary_bytes(T, 'dense') for T in (512, 2048)]
  assert chunked[1] < 6 * chunked[0] and dense[1] > 12 * dense[0]


def test_queries_keys_and_values_are_not_copied():
  """Temporaries as compiled: the forward pass has blocks alone, the backward pass also the output and its
  cotangent. Heads come after tokens in whole arrays; only in blocks they come first.
  """
  T = 2048

  def run(q, k, v):
    return kernel('chunked(queries=32, keys=32)')(q, k, v, **attention_inputs(T=T))

  def loss(*qkv):
    return (run(*qkv) ** 2).sum()

  (q, k, v), size = arrays(T), B * T * H * C * 4
  forward, both = (
    jax.jit(f).lower(q, k, v).compile().memory_analysis().temp_size_in_bytes
    for f in (run, jax.grad(loss, (0, 1, 2)))
  )
  assert forward < 0.7 * size and both < 2.8 * size


@pytest.mark.skipif(jax.default_backend() != 'cpu', reason='other compilers choose their own layouts')
def test_no_product_reads_its_left_side_by_columns():
  """On CPUs such products are twice as slow. Here sides are [rows of the batch, heads, rows, columns]."""
  inputs = attention_inputs()

  def loss(*qkv):
    return (kernel(CHUNKED)(*qkv, **inputs) ** 2).sum()

  text = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*arrays()).compile().as_text()
  contracted = re.findall(r' dot\(.*lhs_contracting_dims=\{(\d)\}', text)
  assert contracted and set(contracted) == {'3'}


@pytest.mark.parametrize('text', ['chunked(0)', 'chunked(keys=-1)'])
def test_rejects_empty_blocks(text):
  with pytest.raises(ValueError, match='must be at least 1'):
    kernel(text)


def test_a_plan_of_too_many_blocks_is_refused():
  with pytest.raises(ValueError, match=r'the plan of 65,536 blocks of 256 .*\(queries=1024, keys=2048\)'):
    plan_visits(collect.mask('causal'), 'contiguous', BlockGrid(256, 512, 2**24, 2**24))


@pytest.mark.parametrize(
  'T, S, queries, keys', [(1, 9, 1, 9), (512, 256, 512, 256), (513, 600, 257, 200), (1024, 257, 512, 129)]
)
def test_blocks_are_few_and_of_about_one_size(T, S, queries, keys):
  assert BlockSizes(queries=512, keys=256).divide(T, S) == BlockGrid(queries, keys, T, S)
