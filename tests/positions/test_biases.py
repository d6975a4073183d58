"""What enters at the logits, against the formulas; asked as a model does, of its instance and a layer's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import tfm.positions
from tests.conformance import collect, tiny
from tests.reference import biases
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.positions.protocol import Position


B, T, S, H, K, C, D = 2, 5, 7, 4, 2, 4, 16
DRAW = np.random.default_rng(0)
Q, KEY = DRAW.standard_normal((B, T, H, C)), DRAW.standard_normal((B, S, K, C))
# As a blockwise kernel asks: unsorted, far apart and close together.
Q_AT, K_AT = DRAW.permutation(40)[: B * T].reshape(B, T), DRAW.permutation(40)[: B * S].reshape(B, S)


class Asked:
  """A position under random parameters: what the model's instance holds, and what a layer's does."""

  def __init__(self, text, heads=H, start=None):
    make = spec.factory(text, *collect.SLOTS['position'], width=D, heads=heads, head_width=C, length=64)
    self.instance, draw = make(), np.random.default_rng(1)

    def random(x):
      return jnp.asarray(draw.standard_normal(x.shape), jnp.float32)

    def parameters(*args, method):
      init = nn.unbox(self.instance.init(jax.random.key(0), *args, method=method)).get('params', {})
      return init if start else jax.tree.map(random, init)

    self.shared = parameters(method='compute_shared')
    self.layer = parameters(self.share(), method='bias')

  def share(self, params=None):
    return self.instance.apply({'params': self.shared if params is None else params}, method='compute_shared')

  def function(self, params=None):
    shared, layer = (self.shared, self.layer) if params is None else params
    return self.instance.apply({'params': layer}, self.share(shared), method='bias')

  def __call__(self, q=Q, k=KEY, q_at=Q_AT, k_at=K_AT, dtype=jnp.float32):
    """The logits [B H T S] as they come: float32."""
    heads, groups = self.instance.heads, k.shape[2]
    q = jnp.asarray(q, dtype).reshape(*q.shape[:2], groups, heads // groups, C).transpose(0, 2, 3, 1, 4)
    at = (jnp.asarray(positions, jnp.int32) for positions in (q_at, k_at))
    logits = jax.jit(lambda f, *a: f(*a))(self.function(), q, jnp.asarray(k, dtype).swapaxes(1, 2), *at)
    assert logits.ndim == 5 and logits.dtype == jnp.float32
    full = jnp.broadcast_to(logits, (*q.shape[:4], k.shape[1]))
    return np.asarray(full).reshape(q.shape[0], heads, *full.shape[3:])

  @property
  def numbers(self):
    """All parameters in float64."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), self.shared | self.layer)


def close(ours, formula, tolerance=1e-5):
  np.testing.assert_allclose(ours, formula, rtol=tolerance, atol=tolerance)


def softplus(x):
  return np.log1p(np.exp(x))


@pytest.mark.parametrize(
  'buckets, max_distance, bidirectional', [(8, 16, False), (8, 16, True), (32, 128, True), (5, 9, False)]
)
def test_t5(buckets, max_distance, bidirectional):
  calls = Asked(f't5({buckets}, {max_distance}, {bidirectional})')
  close(calls(), biases.t5(Q, KEY, Q_AT, K_AT, calls.numbers['table'], max_distance, bidirectional))


@pytest.mark.parametrize('buckets, max_distance', [(32, 128), (16, 64), (64, 1024), (9, 20)])
def test_t5_buckets_of_every_distance(buckets, max_distance):
  """Distances on the edge of a bucket, such as 64 of 8 … 128, above all."""
  from tfm.positions.t5 import bucket

  distances = np.arange(-1200, 1201)
  ways = (False,) if buckets % 2 else (False, True)
  for both in ways:
    expected = [biases.t5_bucket(int(d), buckets, max_distance, both) for d in distances]
    np.testing.assert_array_equal(bucket(distances, buckets, max_distance, both), expected)
    # Both directions have a bucket for distance 0, which is of one only.
    assert set(expected) == set(range(buckets)) - ({buckets // 2} if both else set())


def test_t5_tells_later_keys_apart_where_it_is_bidirectional():
  at = np.tile(np.arange(S), (B, 1))
  q = np.ones((B, S, H, C))
  one, both = (Asked(f't5(8, 16, {both})')(q=q, q_at=at, k_at=at) for both in (False, True))
  ahead = np.triu(np.ones((S, S), bool), 1)
  diagonal = np.broadcast_to(one[:, :, :1, :1], one.shape)
  close(one[..., ahead], diagonal[..., ahead])
  assert np.ptp(both[0, 0][ahead]) > 0.1 and not np.allclose(both, both.swapaxes(-1, -2))


@pytest.mark.parametrize('heads', [*range(1, 18), 24, 33, 71])
def test_alibi_for_any_number_of_heads(heads):
  q, k = np.ones((1, 3, heads, C)), np.ones((1, 4, heads, C))
  q_at, k_at = np.array([[9, 0, 400]]), np.array([[3, 9, 17, 0]])
  close(Asked('alibi', heads)(q, k, q_at, k_at), biases.alibi(q, k, q_at, k_at), 1e-6)


@pytest.mark.parametrize('heads', [6, 8, 32])
def test_alibi_as_falcon_rounds_it(heads):
  """For softmax the same: they differ by what all keys of a query have in common."""
  q, k = np.ones((1, 2, heads, C)), np.ones((1, 9, heads, C))
  q_at, k_at = np.array([[2000, 1501]]), np.array([[0, 1, 3, 99, 257, 300, 513, 1030, 1499]])
  ours = Asked('alibi(scale=0.125, rounded=True)', heads)(q, k, q_at, k_at)
  published = biases.falcon_alibi(q, k, q_at, k_at, 0.125)
  close(ours - ours[..., :1], published - published[..., :1], 1e-6)
  exact = 0.125 * biases.alibi(q, k, q_at, k_at)
  assert np.abs((ours - ours[..., :1]) - (exact - exact[..., :1])).max() > 0.1  # so much rounding is


def test_alibi_takes_a_factor():
  close(Asked('alibi(scale=0.25)')(), 0.25 * biases.alibi(Q, KEY, Q_AT, K_AT), 1e-6)


def test_alibi_falls_on_either_side_of_the_query():
  at = np.tile(np.arange(S), (B, 1))
  logits = Asked('alibi')(q=np.ones((B, S, H, C)), q_at=at, k_at=at)
  close(logits, logits.swapaxes(-1, -2))
  assert (np.diff(logits[0, :, 0]) < 0).all()
  # The last head's slope: 2^-4 instead of 2^-8.
  np.testing.assert_allclose(Asked('alibi(4.0)')()[:, -1], 16 * Asked('alibi')()[:, -1], rtol=1e-6)


def test_transformer_xl():
  calls = Asked('transformer_xl')
  p = calls.numbers
  learned = p['content_bias'], p['position_bias'], p['kernel']
  close(calls(), biases.transformer_xl(Q, KEY, Q_AT, K_AT, *learned), 2e-5)


@pytest.mark.parametrize('base', [5_000, 100_000])
def test_transformer_xl_is_as_exact_far_away(base):
  """Angle addition cancels what two far positions have in common, whether the keys lie near or far."""
  calls, k_at = Asked('transformer_xl'), K_AT.copy()
  k_at[:, 1:] += base  # keys near the queries, and one far before them
  p = calls.numbers
  learned = p['content_bias'], p['position_bias'], p['kernel']
  close(calls(q_at=Q_AT + base, k_at=k_at), biases.transformer_xl(Q, KEY, Q_AT + base, k_at, *learned), 5e-5)


DEBERTA = {
  'v1': ('deberta(6)', dict(max_distance=6, buckets=0)),
  'buckets, norm': ('deberta(20, buckets=8, norm=True)', dict(max_distance=20, buckets=8)),
  'c2p': ('deberta(6, p2c=False)', dict(max_distance=6, buckets=0)),
  'p2c': ('deberta(6, c2p=False)', dict(max_distance=6, buckets=0)),
}


@pytest.mark.parametrize('name', DEBERTA)
def test_deberta_with_its_content_term(name):
  text, settings = DEBERTA[name]
  calls = Asked(text)
  p = calls.numbers
  q = np.asarray(calls.instance.apply({}, jnp.asarray(Q, jnp.float32), None, Q_AT, K_AT, method='rotate')[0])
  content = np.einsum('bthc,bshc->bhts', q, np.repeat(KEY, H // K, 2)) / np.sqrt(C)
  table = p['table']
  if 'norm' in text:
    table = biases.layer_norm(table, p['table_norm']['scale'], p['table_norm']['bias'], 1e-7)
  query = p.get('query', {})
  projections = p.get('key', {}).get('kernel'), query.get('kernel'), query.get('bias')
  close(content + calls(q=q), biases.deberta(Q, KEY, Q_AT, K_AT, table, *projections, **settings), 2e-5)


@pytest.mark.parametrize('max_distance, buckets', [(512, 256), (512, 0), (100, 32), (40, 6), (9, 4), (5, 4)])
def test_deberta_rows_of_every_distance(max_distance, buckets):
  from tfm.positions.deberta import bucket

  distances = np.arange(-max_distance, max_distance + 1)
  rows = bucket(distances, max_distance, buckets)

  def expected(distances):
    return [biases.deberta_bucket(int(d), max_distance, buckets) for d in distances]

  np.testing.assert_array_equal(rows, expected(distances))
  # The bias clips distances to these: those beyond must find the rows at the ends.
  ends = expected([-5 * max_distance, 5 * max_distance])
  assert [rows[0], rows[-1]] == ends == [0, 2 * (buckets or max_distance) - 1]


@pytest.mark.parametrize('text', ['shaw(6)', 'shaw(6, by_head=True)'])
def test_shaw(text):
  calls = Asked(text)
  close(calls(), biases.shaw(Q, KEY, Q_AT, K_AT, calls.numbers['table']))


@pytest.mark.parametrize('kind', ['log', 'power'])
def test_kerple(kind):
  calls = Asked(f'kerple({kind!r})')
  first, second = calls.numbers['scale_1'], calls.numbers['scale_2']
  r2 = softplus(second) if kind == 'log' else 2 / (1 + np.exp(-second))
  at = np.where(np.arange(S) == 2, Q_AT[:, :1], K_AT)  # a distance of 0 too
  close(calls(k_at=at), biases.kerple(Q, KEY, Q_AT, at, softplus(first), r2, kind))


def test_fire():
  calls = Asked('fire(hidden=8, threshold=15.0)')
  p = calls.numbers
  threshold = 15 * abs(p['threshold_scale'])
  assert Q_AT.min() < threshold < Q_AT.max()
  c = abs(p['steepness_scale'])
  network = p['weight_1'], p['bias_1'], p['weight_2']
  close(calls(), biases.fire(Q, KEY, Q_AT, K_AT, c, threshold, *network), 2e-5)


def test_fire_starts_from_the_published_values():
  p = Asked('fire', start=True).numbers
  assert p['weight_1'].shape == (32,) and p['weight_2'].shape == (32, H)
  np.testing.assert_allclose(p['steepness_scale'], 0.1, rtol=1e-6)
  # Up to position 512 a distance alone counts; beyond, its share of the query's position.
  calls = Asked('fire', start=True)
  first, last, beyond = (
    calls(q_at=np.full((B, T), at), k_at=np.full((B, S), at - 100)) for at in (100, 512, 2048)
  )
  close(first, last)
  assert np.abs(last - beyond).max() > 1e-3


@pytest.mark.parametrize(
  'text, far',
  [
    ('t5(8, 16)', 16),
    ('t5(8, 16, True)', 16),
    ('deberta(6)', 6),
    ('deberta(20, buckets=8)', 20),
    ('shaw(6)', 6),
  ],
)
def test_what_is_far_is_all_alike(text, far):
  calls, q_at = Asked(text), np.full((B, T), 1000)
  same = np.broadcast_to(KEY[:, :1], KEY.shape)  # some read the keys
  spread = 1000 - far - np.tile(np.arange(S), (B, 1)) ** 3
  np.testing.assert_allclose(np.ptp(calls(k=same, q_at=q_at, k_at=spread), -1), 0, atol=1e-5)
  assert np.ptp(calls(k=same, q_at=q_at, k_at=999 - np.tile(np.arange(S), (B, 1))), -1).min() > 1e-3


# text → what the model's instance holds, and what a layer's does.
PARAMETERS = {
  't5(8, 16)': ({'table': (8, H)}, {}),
  'alibi': ({}, {}),
  'alibi(scale=0.5, rounded=True)': ({}, {}),
  'transformer_xl': ({}, {'content_bias': (H, C), 'position_bias': (H, C), 'kernel': (D, H, C)}),
  'deberta(20, buckets=8, norm=True)': (
    {'table': (16, D), 'table_norm': {'scale': (D,), 'bias': (D,)}},
    {'key': {'kernel': (D, H, C)}, 'query': {'kernel': (D, H, C), 'bias': (H, C)}},
  ),
  'deberta(6, p2c=False)': ({'table': (12, D)}, {'key': {'kernel': (D, H, C)}}),
  'shaw(6)': ({}, {'table': (13, C)}),
  'shaw(6, by_head=True)': ({}, {'table': (13, H, C)}),
  'kerple': ({}, {'scale_1': (H,), 'scale_2': (H,)}),
  'kerple("power")': ({}, {'scale_1': (H,), 'scale_2': (H,)}),
  'fire(hidden=8, threshold=15.0)': (
    {},
    {'steepness_scale': (), 'threshold_scale': (), 'weight_1': (8,), 'bias_1': (8,), 'weight_2': (8, H)},
  ),
}


@pytest.mark.parametrize('text', PARAMETERS)
def test_each_parameter_is_held_once(text):
  calls = Asked(text)
  shapes = jax.tree.map(lambda x: x.shape, (calls.shared, calls.layer))
  assert shapes == PARAMETERS[text]
  assert calls.instance.reads_content == any(name in text for name in ('transformer_xl', 'deberta', 'shaw'))


@pytest.mark.parametrize('text', PARAMETERS)
def test_softmax_lets_every_parameter_learn(text):
  """No parameter only shifts all the logits of a query, where softmax would not feel it."""
  calls = Asked(text)
  # Next to each other for the tables' sake, and one at a distance of 0.
  near = np.concatenate([Q_AT, Q_AT[:, :2] + 1], 1)
  q_at, k_at = jnp.asarray(Q_AT, jnp.int32), jnp.asarray(near, jnp.int32)
  q = jnp.asarray(Q, jnp.float32).reshape(B, T, K, H // K, C).transpose(0, 2, 3, 1, 4)
  k = jnp.asarray(KEY, jnp.float32).swapaxes(1, 2)
  expected = jnp.asarray(np.random.default_rng(2).standard_normal((B, K, H // K, T, S)), jnp.float32)

  def loss(params):
    return (jax.nn.softmax(calls.function(params)(q, k, q_at, k_at)) * expected).sum()

  gradients = jax.tree.leaves(jax.jit(jax.grad(loss))((calls.shared, calls.layer)))
  assert all(np.isfinite(g).all() and np.abs(g).max() > 1e-4 for g in gradients)


@pytest.mark.parametrize('text', [text for text in PARAMETERS if not text.startswith('alibi')])
def test_bfloat16_queries_give_float32_logits_close_by(text):
  calls = Asked(text)
  rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32)) for x in (Q, KEY)]
  exact = calls(*rounded)
  # What does not read them is not touched by their type.
  tolerance = 0.02 * np.abs(exact).max() if calls.instance.reads_content else 0
  np.testing.assert_allclose(calls(*rounded, dtype=jnp.bfloat16), exact, rtol=0, atol=tolerance)


def test_one_table_for_all_layers_of_a_model():
  paths = [
    jax.tree_util.keystr(path)
    for path, _ in jax.tree_util.tree_leaves_with_path(
      tiny.boxed(tiny.decoder(position='t5(8, 9)')), is_leaf=lambda x: hasattr(x, 'names')
    )
  ]
  assert [path for path in paths if 'position' in path] == ["['position_0']['table']"]


@pytest.mark.parametrize(
  'text, words',
  [
    ('t5(buckets=1)', 'buckets=1 must be 2'),
    ('t5(buckets=7, bidirectional=True)', 'buckets=7 must be an even number, 4'),
    ('t5(max_distance=16)', 'max_distance=16 must be above 16'),
    ('alibi(0.0)', 'exponent=0.0 must be above 0'),
    ('alibi(scale=0.0)', 'scale=0.0 must be above 0'),
    ('deberta(c2p=False, p2c=False)', 'c2p=False and p2c=False leave no position'),
    ('deberta(0)', 'max_distance=0 must be at least 1'),
    ('deberta(64, buckets=7)', 'buckets=7 must be 0 .none. or an even number'),
    ('deberta(64, buckets=2)', 'buckets=2 must be 0 .none. or an even number, 4 or more'),
    ('deberta(64, buckets=64)', 'buckets=64 .* below max_distance=64'),
    ('shaw(0)', 'max_distance=0 must be at least 1'),
    ('kerple("logg")', "kind='logg' is unknown; known: log, power; did you mean 'log'"),
    ('fire(hidden=0)', 'hidden=0 must be above 0'),
    ('fire(threshold=-1.0)', 'threshold=-1.0 must be above 0'),
  ],
)
def test_what_cannot_be_honoured_is_refused(text, words):
  with pytest.raises(ValueError, match=words):
    spec.factory(text, *collect.SLOTS['position'], width=D, heads=H, head_width=C, length=64)


def test_transformer_xl_wants_an_even_width():
  with pytest.raises(ValueError, match='model.width=15 is odd'):
    spec.factory('transformer_xl', tfm.positions, Position, width=15, heads=3, head_width=5, length=64)


@pytest.mark.parametrize('text', ['t5(8, 9)', 'deberta(6)'])
def test_blocks_that_share_must_have_equal_heads(text):
  blocks = dict(pattern=('a', 'b'), blocks=dict(a={}, b=dict(heads=2)))
  config = resolve_config(
    complete(
      dict(
        data=dict(length=12), model=dict(layers=2, width=16, heads=4, head_width=4, position=text) | blocks
      )
    )
  )
  with pytest.raises(
    ValueError, match=r'config\.model\.blocks\.b\.position=.* shares one table among its blocks'
  ):
    Experiment(config).build_model(29)
