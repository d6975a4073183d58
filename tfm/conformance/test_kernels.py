"""The kernel changes nothing: each equals the dense one, and the dense one equals the formula."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import tfm.positions
from tfm import spec
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import attention, collect
from tfm.conformance.biases import find_bias_fault
from tfm.conformance.sentences import require_same_attention
from tfm.conformance.tiny import PREFIX, apply_with_random_params, config
from tfm.kernels.protocol import Kernel
from tfm.layers import locations
from tfm.layers.locations import Locations
from tfm.positions.protocol import Position


B, S, C = 2, 12, 4
# Those for another platform have tests of their own in tests/kernels, and so has `auto`, which is one of them
# all.
KERNELS = [
  text
  for text in collect.specs('kernel')
  if text != 'auto'
  and not spec.build(text, *collect.SLOTS['kernel']).unavailable_reason(jax.default_backend())
]
# In blocks as long as the rows there is little that could go wrong, and what does is one block of many.
QUICK_FIRST = [
  pytest.param(text, marks=[] if text == 'dense' or '(' in text else [pytest.mark.slow]) for text in KERNELS
]
TOLERANCE = {'float32': 2e-5, 'bfloat16': 3e-2}  # bf16 keeps 8 bits of each weight and each value


@dataclasses.dataclass(frozen=True)
class Case:
  """The inputs of a kernel; the defaults are plain causal attention over whole rows."""

  mask: str = 'causal'
  heads: int = 4
  kv_heads: int = 4
  score: str = 'dot'
  bias: str = ''  # a position spec that has one, or 'own', below
  segments: str = 'whole'  # whole, packed (two documents and padding), padding (nothing else)
  queries: tuple = (0, S)  # which of the S tokens are queries
  learned_score: bool = False
  soft_cap: float = 0.0
  sinks: bool = False
  normalizer: str = 'softmax'
  dropout: float = 0.0
  layout: str = 'arbitrary'

  @functools.cached_property
  def arrays(self):
    """Everything in float32 and int32, as a dict of the kernel's arguments."""
    draw = np.random.default_rng(0)
    shapes = dict(q=(B, S, self.heads, C), k=(B, S, self.kv_heads, C), v=(B, S, self.kv_heads, C))
    a = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    packed = np.array([[1] * 5 + [2] * 4 + [0] * 3, [0] * 2 + [1] * 10])
    restarted = np.array([[*range(5), *range(4), 0, 0, 0], [0, 0, *range(10)]])
    whole, at = np.ones((B, S), int), np.tile(np.arange(S), (B, 1))
    segments, positions = {'whole': (whole, at), 'packed': (packed, restarted), 'padding': (0 * whole, at)}[
      self.segments
    ]
    a |= dict(k_segments=segments.astype(np.int32), k_positions=positions.astype(np.int32))
    asking = slice(*self.queries)
    a |= dict(q_segments=a['k_segments'][:, asking], q_positions=a['k_positions'][:, asking])
    a['q'] = a['q'][:, asking]
    return a

  def make_inputs(self):
    """The keywords that are no arrays of the tokens."""
    return dict(
      mask=collect.mask(self.mask),
      soft_cap=self.soft_cap,
      normalizer=self.normalizer,
      sigmoid_offset=-0.5,
      layout=self.layout,
      dropout=self.dropout,
      dropout_key=jax.random.key(3) if self.dropout else None,
      has_blockwise_bias=self.has_blockwise_bias,
    )

  @property
  def has_blockwise_bias(self):
    """Whether every kernel must support the bias, blockwise ones too."""
    return self.bias in ('', 'own') or collect.variant('position', self.bias).has_blockwise_bias

  def learned(self):
    """The score, the bias and the sinks: what has learned leaves."""
    sinks = (
      jnp.asarray(np.random.default_rng(4).standard_normal(self.heads), jnp.float32) if self.sinks else None
    )
    return *self.functions(), sinks

  def functions(self):
    """The score and the bias: functions with learned leaves."""
    score = apply_with_random_params(
      spec.factory(self.score, *collect.SLOTS['score'], head_width=C), lambda result: result()
    )
    if self.learned_score:
      score = Partial(weighted, jnp.asarray([0.5, 1.0, -0.7, 1.5]))
    if self.bias in ('', 'own'):
      table = jnp.asarray(np.random.default_rng(1).standard_normal((self.heads, 5)), jnp.float32)
      return score, Partial(by_distance, table) if self.bias else None
    c = config(position=self.bias, heads=self.heads, kv_heads=self.kv_heads, head_width=C)
    return score, apply_with_random_params(
      assemble.build_position(Experiment(c), 'model', c.model),
      lambda result: result.bias(result.compute_table()),
    )


def weighted(weight, q, k):
  """A score with a learned vector, Σ_c w_c q_c k_c."""
  return jnp.einsum(
    'BKGTC,BKSC->BKGTS',
    q * weight.reshape(1, 1, 1, 1, -1).astype(q.dtype),
    k,
    preferred_element_type=jnp.float32,
  )


def by_distance(table, q, k, q_locations, k_locations):
  """A learned bias per head and clipped distance, times the number of the document in its row."""
  distance = jnp.clip(-locations.distances(q_locations, k_locations), -2, 2) + 2
  bias = jnp.moveaxis(table[:, distance], 0, 1) * q_locations.segments[:, None, :, None]
  return bias.reshape(q.shape[0], k.shape[1], -1, q.shape[3], k.shape[2])


CASES = {
  'multi-head': Case(),
  'grouped': Case(kv_heads=2),
  'multi-query window': Case(kv_heads=1, mask='causal & window(2)'),
  'both ways': Case(mask='window(3)'),
  'packed': Case(kv_heads=2, segments='packed'),
  'bias': Case(kv_heads=2, bias='own', segments='packed'),
  'learned score': Case(kv_heads=2, learned_score=True, bias='own', mask='causal & window(3)'),
  'a row that sees nothing': Case(kv_heads=2, mask='~causal', bias='own'),
  'padding only': Case(kv_heads=2, segments='padding'),
  'one query': Case(kv_heads=2, queries=(7, 8), bias='own'),
  'few queries': Case(kv_heads=2, queries=(4, 7), segments='packed'),
  'soft cap': Case(kv_heads=2, soft_cap=1.5, bias='own', segments='packed'),
  'sinks': Case(kv_heads=2, sinks=True, mask='causal & window(2)', segments='packed'),
  'sinks over nothing': Case(sinks=True, mask='~causal'),
  'sigmoid': Case(kv_heads=2, normalizer='sigmoid', bias='own', segments='packed'),
  'prefix': Case(kv_heads=2, mask='prefix', segments='packed'),
  'whole': Case(kv_heads=2, mask='causal & window(4)', layout='contiguous'),
  'packed layout': Case(kv_heads=2, mask='causal & window(2)', segments='packed', layout='packed'),
}
# Each kernel draws as the dense one does, whose own share and mean are tested below.
DROPPED = {
  'dropout': Case(kv_heads=2, dropout=0.3, bias='own', segments='packed'),
  'dropout with sinks': Case(kv_heads=2, dropout=0.3, sinks=True),
  'dropout of sigmoid': Case(kv_heads=2, dropout=0.3, normalizer='sigmoid'),
}
COLLECTED = {f'score {text}': Case(kv_heads=2, score=text) for text in collect.specs('score')}
COLLECTED |= {
  f'mask {text}': Case(kv_heads=2, mask=text, segments='packed') for text in collect.specs('mask')
}
COLLECTED |= {
  f'position {text}': Case(kv_heads=2, bias=text, segments='packed')
  for name in collect.variants('position')
  for text in collect.examples('position', name)
  if spec.find_variant(name, tfm.positions, Position).bias != Position.bias
}
CASES |= {name: case for name, case in COLLECTED.items() if case not in CASES.values()}


def kernel(text) -> Kernel:
  return spec.build(text, *collect.SLOTS['kernel'])


@functools.cache
def call(text, case, dtype='float32', order=None):
  """(out, gradients of q, k, v, score, bias and sinks for a fixed cotangent), through jit; keys in another
  order.
  """
  a = dict(case.arrays)
  if order:
    a |= {name: a[name][:, order] for name in ('k', 'v', 'k_positions', 'k_segments')}
  at = {name: jnp.asarray(x) for name, x in a.items() if name not in 'qkv'}
  q, k, v = (jnp.asarray(a[name], dtype) for name in 'qkv')
  try:
    return compiled(text, case)(q, k, v, *case.learned(), at)
  except ValueError as refusal:
    assert may_refuse(text, case), f'{text} refuses {case}, which every kernel for all platforms must support'
    pytest.skip(f'refused: {refusal}')


@functools.cache
def compiled(text, case):
  """The function of `call`, of which orders of keys are one."""

  @jax.jit
  def run(q, k, v, score, bias, sinks, at):
    fixed = at | case.make_inputs() | dict(k_prefix=jnp.full_like(at['k_positions'], PREFIX))

    def out(q, k, v, score, bias, sinks):
      return kernel(text)(q, k, v, score=score, bias=bias, sinks=sinks, **fixed)

    y, back = jax.vjp(out, q, k, v, score, bias, sinks)
    return y, back(jnp.asarray(cotangent(case.arrays), y.dtype))

  return run


def may_refuse(text, case):
  """All that a kernel for every platform may refuse: a bias that is not blockwise, if it works in blocks.

  docs/reference/variants.md has the same table of all kernels, from their code.
  """
  return spec.parse(text).name in ('chunked', 'ring') and not case.has_blockwise_bias


def cotangent(a):
  return np.random.default_rng(2).standard_normal((*a['q'].shape[:3], C)).astype(np.float32)


def formula(case, dtype='float32'):
  """The same from tests/reference, in float64, on arrays rounded to `dtype`."""
  a = case.arrays
  rounded = {n: np.asarray(jnp.asarray(a[n], dtype).astype(jnp.float32), np.float64) for n in 'qkv'}
  q, k, v = rounded.values()
  score, bias, sinks = case.learned()
  B, T, H, _ = q.shape
  K = k.shape[2]
  grouped = jnp.asarray(q.reshape(B, T, K, H // K, C).transpose(0, 2, 3, 1, 4), dtype)
  keys = jnp.asarray(k.swapaxes(1, 2), dtype)

  def logits_of(score, bias, q, k):
    logits = score(q, k)
    logits = (
      logits
      if bias is None
      else logits + bias(q, k, *(Locations(a[f'{n}_positions'], a[f'{n}_segments']) for n in 'qk'))
    )
    return case.soft_cap * jnp.tanh(logits / case.soft_cap) if case.soft_cap else logits

  logits, back = jax.jit(lambda *args: jax.vjp(logits_of, *args))(score, bias, grouped, keys)
  flat = np.asarray(logits, np.float64).reshape(B, H, T, -1)
  if case.score == 'dot' and not case.learned_score and bias is None and not case.soft_cap:
    np.testing.assert_allclose(flat, attention.dot_logits(q, k), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
  visible = attention.seen(
    lambda q, k: bool(collect.mask(case.mask).bind_prefix(PREFIX)(np.asarray(q), np.asarray(k))),
    *(a[n] for n in ('q_positions', 'k_positions', 'q_segments', 'k_segments')),
  )
  inputs = case.make_inputs()
  if case.normalizer == 'sigmoid':
    p = attention.sigmoid_weights(flat, visible, inputs['sigmoid_offset'])
    d_p, d_v = attention.weight_gradients(p, v, cotangent(a))
    d_logits = d_p * p * (1 - p)
  else:
    p = attention.weights(flat, visible, None if sinks is None else np.asarray(sinks, np.float64))
    d_p, d_v = attention.weight_gradients(p, v, cotangent(a))
    d_logits, d_sinks = attention.softmax_gradients(p, d_p)
  d_score, d_bias, d_q, d_k = jax.jit(lambda back, g: back(g))(
    back, jnp.asarray(d_logits.reshape(logits.shape), jnp.float32)
  )
  d_q, d_k = d_q.transpose(0, 3, 1, 2, 4).reshape(q.shape), d_k.swapaxes(1, 2)
  return attention.attend(p, v), (d_q, d_k, d_v, d_score, d_bias, None if sinks is None else d_sinks)


def close(a, b, tolerance):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(8)
@pytest.mark.parametrize('name', CASES)
def test_dense_is_the_formula(name):
  found, expected = call('dense', CASES[name]), formula(CASES[name])
  require_same_attention(found, expected, TOLERANCE['float32'], f'dense, {name}, beside the formula')


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
  'text, name',
  [
    pytest.param(
      text, name, marks=[] if '(' in text or name in ('multi-head', 'packed', 'whole') else [pytest.mark.slow]
    )
    for text in KERNELS
    if text != 'dense'
    for name in CASES | DROPPED
  ],
)
def test_every_kernel_is_the_dense_one(text, name):
  case = (CASES | DROPPED)[name]
  if case.bias not in ('', 'own') and (fault := find_bias_fault(case.bias)):
    pytest.skip(f'the position fails alone: {fault}')
  found, expected = call(text, case), call('dense', case)
  require_same_attention(found, expected, TOLERANCE['float32'], f'{text}, {name}, beside dense')


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', ['multi-head', 'packed', 'learned score', 'a row that sees nothing'])
@pytest.mark.parametrize('text', KERNELS)
def test_bfloat16(text, name):
  out, gradients = call(text, CASES[name], 'bfloat16')
  assert out.dtype == jnp.bfloat16
  expected, by_hand = formula(CASES[name], 'bfloat16')
  close(out, expected, TOLERANCE['bfloat16'])
  for x, y in zip(jax.tree.leaves(gradients), jax.tree.leaves(by_hand), strict=True):
    # A gradient sums many rounded terms: judged by its own size.
    error = np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64)).max()
    assert error <= TOLERANCE['bfloat16'] * np.abs(np.asarray(y, np.float64)).max()


@pytest.mark.parametrize('text', QUICK_FIRST)
def test_a_query_that_sees_nothing_gets_zeros_and_gives_none(text):
  case = CASES['a row that sees nothing']
  out, (d_q, d_k, d_v, _, d_bias, _) = call(text, case)
  assert not out[:, -1].any() and out[:, :-1].any()  # nothing stands after the last
  assert not d_q[:, -1].any() and not d_k[:, 0].any() and not d_v[:, 0].any()  # nobody sees the first
  out, gradients = call(text, CASES['padding only'])
  assert not out.any() and not any(np.any(g) for g in jax.tree.leaves(gradients))


@pytest.mark.sampled(3)
@pytest.mark.parametrize('name', ['packed', 'bias', 'multi-query window', 'few queries'])
@pytest.mark.parametrize('text', KERNELS)
def test_the_order_of_keys_does_not_matter(text, name):
  case = CASES[name]
  order = np.random.default_rng(3).permutation(S)
  out, (d_q, d_k, d_v, _, d_bias, _) = call(text, case)
  out_, (d_q_, d_k_, d_v_, _, d_bias_, _) = call(text, case, order=tuple(order.tolist()))
  close(
    (out, d_q, d_k[:, order], d_v[:, order], d_bias), (out_, d_q_, d_k_, d_v_, d_bias_), TOLERANCE['float32']
  )


@pytest.mark.parametrize('text', QUICK_FIRST)
class TestDropout:
  @staticmethod
  @functools.cache
  def mixed(text, rate, rows=64):
    """By key: with values of one, an output is the sum of what is left of its weights."""
    q = jnp.zeros((1, rows, 4, C))
    k = v = jnp.ones((1, rows, 2, C))
    at, one = jnp.arange(rows)[None], jnp.ones((1, rows), jnp.int32)
    score, _ = Case().functions()
    return jax.jit(
      lambda key: kernel(text)(
        q,
        k,
        v,
        score=score,
        mask=collect.mask('window(0)'),
        bias=None,
        q_positions=at,
        k_positions=at,
        q_segments=one,
        k_segments=one,
        dropout=rate,
        dropout_key=key,
      )
    )

  def test_drops_its_share_and_keeps_the_mean(self, text):
    # Each query sees one key: its weight is dropped, or stands 1 / (1 - rate) as large.
    out = np.asarray(self.mixed(text, 0.25, rows=512)(jax.random.key(0)))
    keep_mask = out > 0
    np.testing.assert_allclose(out[keep_mask], 1 / 0.75, rtol=1e-6)
    assert 0.70 < keep_mask[..., 0].mean() < 0.80  # 2048 weights: five standard deviations
    assert (keep_mask[..., 0] == keep_mask[..., 1]).all()  # a weight is dropped, not channels of the output

  def test_is_the_keys_doing(self, text):
    a, again, b = (np.asarray(self.mixed(text, 0.5)(jax.random.key(i))) for i in (0, 0, 1))
    assert (a == again).all() and (a != b).any()
    # Heads of one group, and rows, are dropped apart.
    assert (a[:, :, 0] != a[:, :, 1]).any() and (a[:, :, 0] != a[:, :, 2]).any()

  def test_no_key_or_no_rate_drops_nothing(self, text):
    np.testing.assert_allclose(self.mixed(text, 0.5)(None), 1)
    np.testing.assert_allclose(self.mixed(text, 0.0)(jax.random.key(0)), 1)


@pytest.mark.parametrize('text', KERNELS)
def test_equal_specs_are_equal_kernels(text):
  assert kernel(text) == kernel(text) and hash(kernel(text)) == hash(kernel(text))
