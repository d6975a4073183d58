"""Position biases against their formulas, computed as in a model: by its shared instance and a layer's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import tfm.positions
from tests.reference import biases
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.conformance import collect, tiny
from tfm.layers.locations import Locations
from tfm.positions.protocol import Position


B, T, S, H, K, C, D = 2, 5, 7, 4, 2, 4, 16
DRAW = np.random.default_rng(0)
Q, KEY = DRAW.standard_normal((B, T, H, C)), DRAW.standard_normal((B, S, K, C))
# Positions as in a blockwise kernel: unsorted, far apart and close together.
Q_AT, K_AT = DRAW.permutation(40)[: B * T].reshape(B, T), DRAW.permutation(40)[: B * S].reshape(B, S)


class PositionBias:
  """A position with random parameters: `shared` of the model's instance, `layer` of a layer's."""

  def __init__(self, text, heads=H, start=None):
    make = spec.factory(text, *collect.SLOTS['position'], width=D, heads=heads, head_width=C, length=64)
    self.instance, draw = make(), np.random.default_rng(1)

    def random(x):
      return jnp.asarray(draw.standard_normal(x.shape), jnp.float32)

    def parameters(*args, method):
      init = nn.unbox(self.instance.init(jax.random.key(0), *args, method=method)).get('params', {})
      return init if start else jax.tree.map(random, init)

    self.shared = parameters(method='compute_table')
    self.layer = parameters(self.apply_shared(), method='bias')

  def apply_shared(self, params=None):
    return self.instance.apply({'params': self.shared if params is None else params}, method='compute_table')

  def function(self, params=None):
    shared, layer = (self.shared, self.layer) if params is None else params
    return self.instance.apply({'params': layer}, self.apply_shared(shared), method='bias')

  def __call__(self, q=Q, k=KEY, q_at=Q_AT, k_at=K_AT, dtype=jnp.float32):
    """The float32 logits [B H T S]."""
    heads, groups = self.instance.heads, k.shape[2]
    q = jnp.asarray(q, dtype).reshape(*q.shape[:2], groups, heads // groups, C).transpose(0, 2, 3, 1, 4)
    at = map(located, (q_at, k_at))
    logits = jax.jit(lambda f, *a: f(*a))(self.function(), q, jnp.asarray(k, dtype).swapaxes(1, 2), *at)
    assert logits.ndim == 5 and logits.dtype == jnp.float32
    full = jnp.broadcast_to(logits, (*q.shape[:4], k.shape[1]))
    return np.asarray(full).reshape(q.shape[0], heads, *full.shape[3:])

  @property
  def numbers(self):
    """All parameters in float64."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), self.shared | self.layer)


def located(positions):
  """Tokens of one document at these positions."""
  positions = jnp.asarray(positions, jnp.int32)
  return Locations(positions, jnp.ones_like(positions))


def close(ours, formula, tolerance=1e-5):
  np.testing.assert_allclose(ours, formula, rtol=tolerance, atol=tolerance)


def softplus(x):
  return np.log1p(np.exp(x))


@pytest.mark.parametrize(
  'buckets, max_distance, bidirectional', [(8, 16, False), (8, 16, True), (32, 128, True), (5, 9, False)]
)
def test_t5(buckets, max_distance, bidirectional):
  bias = PositionBias(f't5({buckets}, {max_distance}, {bidirectional})')
  close(bias(), biases.t5(Q, KEY, Q_AT, K_AT, bias.numbers['table'], max_distance, bidirectional))


@pytest.mark.parametrize('buckets, max_distance', [(32, 128), (16, 64), (64, 1024), (9, 20)])
def test_t5_buckets_of_every_distance(buckets, max_distance):
  """Including distances on the edge of a bucket, such as 64 of 8 … 128."""
  from tfm.positions.t5 import bucket

  distances = np.arange(-1200, 1201)
  directions = (False,) if buckets % 2 else (False, True)
  for bidirectional in directions:
    expected = [biases.t5_bucket(int(d), buckets, max_distance, bidirectional) for d in distances]
    np.testing.assert_array_equal(bucket(distances, buckets, max_distance, bidirectional), expected)
    # A bidirectional table has a second bucket for distance 0, which no distance uses.
    assert set(expected) == set(range(buckets)) - ({buckets // 2} if bidirectional else set())


def test_t5_distinguishes_later_keys_if_bidirectional():
  at = np.tile(np.arange(S), (B, 1))
  q = np.ones((B, S, H, C))
  one, both = (PositionBias(f't5(8, 16, {both})')(q=q, q_at=at, k_at=at) for both in (False, True))
  ahead = np.triu(np.ones((S, S), bool), 1)
  diagonal = np.broadcast_to(one[:, :, :1, :1], one.shape)
  close(one[..., ahead], diagonal[..., ahead])
  assert np.ptp(both[0, 0][ahead]) > 0.1 and not np.allclose(both, both.swapaxes(-1, -2))


@pytest.mark.sampled(6)
@pytest.mark.parametrize('heads', [*range(1, 18), 24, 33, 71])
def test_alibi_for_any_number_of_heads(heads):
  q, k = np.ones((1, 3, heads, C)), np.ones((1, 4, heads, C))
  q_at, k_at = np.array([[9, 0, 400]]), np.array([[3, 9, 17, 0]])
  close(PositionBias('alibi', heads)(q, k, q_at, k_at), biases.alibi(q, k, q_at, k_at), 1e-6)


@pytest.mark.parametrize('heads', [6, 8, 32])
def test_alibi_with_the_rounding_of_falcon(heads):
  """Equal up to a constant per query, which softmax cancels."""
  q, k = np.ones((1, 2, heads, C)), np.ones((1, 9, heads, C))
  q_at, k_at = np.array([[2000, 1501]]), np.array([[0, 1, 3, 99, 257, 300, 513, 1030, 1499]])
  ours = PositionBias('alibi(scale=0.125, rounded=True)', heads)(q, k, q_at, k_at)
  published = biases.falcon_alibi(q, k, q_at, k_at, 0.125)
  close(ours - ours[..., :1], published - published[..., :1], 1e-6)
  exact = 0.125 * biases.alibi(q, k, q_at, k_at)
  assert np.abs((ours - ours[..., :1]) - (exact - exact[..., :1])).max() > 0.1  # the size of the rounding


def test_alibi_scale():
  close(PositionBias('alibi(scale=0.25)')(), 0.25 * biases.alibi(Q, KEY, Q_AT, K_AT), 1e-6)


def test_alibi_decreases_on_both_sides_of_the_query():
  at = np.tile(np.arange(S), (B, 1))
  logits = PositionBias('alibi')(q=np.ones((B, S, H, C)), q_at=at, k_at=at)
  close(logits, logits.swapaxes(-1, -2))
  assert (np.diff(logits[0, :, 0]) < 0).all()
  # The last head's slope: 2^-4 instead of 2^-8.
  np.testing.assert_allclose(
    PositionBias('alibi(4.0)')()[:, -1], 16 * PositionBias('alibi')()[:, -1], rtol=1e-6
  )


def test_transformer_xl():
  bias = PositionBias('transformer_xl')
  p = bias.numbers
  learned = p['content_bias'], p['position_bias'], p['kernel']
  close(bias(), biases.transformer_xl(Q, KEY, Q_AT, K_AT, *learned), 2e-5)


@pytest.mark.parametrize('base', [5_000, 100_000])
def test_transformer_xl_is_exact_at_far_positions(base):
  """Angle addition cancels the common offset of far positions, for near and for far keys."""
  bias, k_at = PositionBias('transformer_xl'), K_AT.copy()
  k_at[:, 1:] += base  # keys near the queries, and one far before them
  p = bias.numbers
  learned = p['content_bias'], p['position_bias'], p['kernel']
  close(bias(q_at=Q_AT + base, k_at=k_at), biases.transformer_xl(Q, KEY, Q_AT + base, k_at, *learned), 5e-5)


DEBERTA = {
  'v1': ('deberta(6)', dict(max_distance=6, buckets=0)),
  'buckets, norm': ('deberta(20, buckets=8, norm=True)', dict(max_distance=20, buckets=8)),
  'c2p': ('deberta(6, p2c=False)', dict(max_distance=6, buckets=0)),
  'p2c': ('deberta(6, c2p=False)', dict(max_distance=6, buckets=0)),
}


@pytest.mark.parametrize('name', DEBERTA)
def test_deberta_with_the_content_term(name):
  text, settings = DEBERTA[name]
  bias = PositionBias(text)
  p = bias.numbers
  q = np.asarray(bias.instance.apply({}, jnp.asarray(Q, jnp.float32), None, Q_AT, K_AT, method='rotate')[0])
  content = np.einsum('bthc,bshc->bhts', q, np.repeat(KEY, H // K, 2)) / np.sqrt(C)
  table = p['table']
  if 'norm' in text:
    table = biases.layer_norm(table, p['table_norm']['scale'], p['table_norm']['bias'], 1e-7)
  query = p.get('query', {})
  projections = p.get('key', {}).get('kernel'), query.get('kernel'), query.get('bias')
  close(content + bias(q=q), biases.deberta(Q, KEY, Q_AT, K_AT, table, *projections, **settings), 2e-5)


@pytest.mark.parametrize('max_distance, buckets', [(512, 256), (512, 0), (100, 32), (40, 6), (9, 4), (5, 4)])
def test_deberta_rows_of_every_distance(max_distance, buckets):
  from tfm.positions.deberta import bucket

  distances = np.arange(-max_distance, max_distance + 1)
  rows = bucket(distances, max_distance, buckets)

  def expected(distances):
    return [biases.deberta_bucket(int(d), max_distance, buckets) for d in distances]

  np.testing.assert_array_equal(rows, expected(distances))
  # The bias clips distances to this range: those beyond it read the first or the last row.
  ends = expected([-5 * max_distance, 5 * max_distance])
  assert [rows[0], rows[-1]] == ends == [0, 2 * (buckets or max_distance) - 1]


@pytest.mark.parametrize('text', ['shaw(6)', 'shaw(6, by_head=True)'])
def test_shaw(text):
  bias = PositionBias(text)
  close(bias(), biases.shaw(Q, KEY, Q_AT, K_AT, bias.numbers['table']))


def test_dense_synthesizer():
  bias = PositionBias('dense_synthesizer')
  p = bias.numbers
  close(bias(), biases.dense_synthesizer(Q, KEY, Q_AT, K_AT, p['table'], p['bias']), 2e-5)


def test_random_synthesizer():
  bias = PositionBias('random_synthesizer(rows=70)')
  close(bias(), biases.random_synthesizer(Q, KEY, Q_AT, K_AT, bias.numbers['table']))


@pytest.mark.parametrize('name', ['dense_synthesizer', 'random_synthesizer'])
def test_synthesizers_refuse_what_is_longer_than_their_tables(name):
  assert PositionBias(f'{name}(rows=80)').instance.max_positions == 80
  assert PositionBias(name).instance.max_positions == 64
  with pytest.raises(ValueError, match=r'rows=63 is shorter than data.length=64; give the table at least 64'):
    PositionBias(f'{name}(rows=63)')


@pytest.mark.parametrize('kind', ['log', 'power'])
def test_kerple(kind):
  bias = PositionBias(f'kerple({kind!r})')
  first, second = bias.numbers['scale_1'], bias.numbers['scale_2']
  r2 = softplus(second) if kind == 'log' else 2 / (1 + np.exp(-second))
  at = np.where(np.arange(S) == 2, Q_AT[:, :1], K_AT)  # includes a distance of 0
  close(bias(k_at=at), biases.kerple(Q, KEY, Q_AT, at, softplus(first), r2, kind))


def test_fire():
  bias = PositionBias('fire(hidden=8, threshold=15.0)')
  p = bias.numbers
  threshold = 15 * abs(p['threshold_scale'])
  assert Q_AT.min() < threshold < Q_AT.max()
  c = abs(p['steepness_scale'])
  network = p['weight_1'], p['bias_1'], p['weight_2']
  close(bias(), biases.fire(Q, KEY, Q_AT, K_AT, c, threshold, *network), 2e-5)


def test_fire_starts_from_the_published_values():
  p = PositionBias('fire', start=True).numbers
  assert p['weight_1'].shape == (32,) and p['weight_2'].shape == (32, H)
  np.testing.assert_allclose(p['steepness_scale'], 0.1, rtol=1e-6)
  # Up to position 512 the bias depends on the distance alone; beyond, on its share of the query's position.
  bias = PositionBias('fire', start=True)
  first, last, beyond = (
    bias(q_at=np.full((B, T), at), k_at=np.full((B, S), at - 100)) for at in (100, 512, 2048)
  )
  close(first, last)
  assert np.abs(last - beyond).max() > 1e-3


@pytest.mark.parametrize(
  'text, max_distance',
  [
    ('t5(8, 16)', 16),
    ('t5(8, 16, True)', 16),
    ('deberta(6)', 6),
    ('deberta(20, buckets=8)', 20),
    ('shaw(6)', 6),
  ],
)
def test_far_distances_share_one_bias(text, max_distance):
  bias, q_at = PositionBias(text), np.full((B, T), 1000)
  same = np.broadcast_to(KEY[:, :1], KEY.shape)  # some biases depend on the keys
  spread = 1000 - max_distance - np.tile(np.arange(S), (B, 1)) ** 3
  np.testing.assert_allclose(np.ptp(bias(k=same, q_at=q_at, k_at=spread), -1), 0, atol=1e-5)
  assert np.ptp(bias(k=same, q_at=q_at, k_at=999 - np.tile(np.arange(S), (B, 1))), -1).min() > 1e-3


# text → shapes of the parameters of (the model's instance, a layer's).
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
  'dense_synthesizer': ({}, {'table': (64, H, C), 'bias': (64, H)}),
  'random_synthesizer': ({}, {'table': (H, 64, 64)}),
  'kerple': ({}, {'scale_1': (H,), 'scale_2': (H,)}),
  'kerple("power")': ({}, {'scale_1': (H,), 'scale_2': (H,)}),
  'fire(hidden=8, threshold=15.0)': (
    {},
    {'steepness_scale': (), 'threshold_scale': (), 'weight_1': (8,), 'bias_1': (8,), 'weight_2': (8, H)},
  ),
}


@pytest.mark.parametrize('text', PARAMETERS)
def test_each_parameter_exists_once(text):
  bias = PositionBias(text)
  shapes = jax.tree.map(lambda x: x.shape, (bias.shared, bias.layer))
  assert shapes == PARAMETERS[text]
  reading = 'transformer_xl', 'deberta', 'shaw', 'dense_synthesizer'
  assert bias.instance.reads_content == any(name in text for name in reading)


@pytest.mark.parametrize('text', PARAMETERS)
def test_every_parameter_has_a_gradient_through_softmax(text):
  """No parameter only shifts all logits of a query, which softmax would cancel."""
  bias = PositionBias(text)
  # Keys at the positions of the queries and next to them, so that tables of near distances are used.
  near = np.concatenate([Q_AT, Q_AT[:, :2] + 1], 1)
  q_at, k_at = located(Q_AT), located(near)
  q = jnp.asarray(Q, jnp.float32).reshape(B, T, K, H // K, C).transpose(0, 2, 3, 1, 4)
  k = jnp.asarray(KEY, jnp.float32).swapaxes(1, 2)
  weights = jnp.asarray(np.random.default_rng(2).standard_normal((B, K, H // K, T, S)), jnp.float32)

  def loss(params):
    return (jax.nn.softmax(bias.function(params)(q, k, q_at, k_at)) * weights).sum()

  gradients = jax.tree.leaves(jax.jit(jax.grad(loss))((bias.shared, bias.layer)))
  assert all(np.isfinite(g).all() and np.abs(g).max() > 1e-4 for g in gradients)


@pytest.mark.parametrize('text', [text for text in PARAMETERS if not text.startswith('alibi')])
def test_bfloat16_inputs_give_float32_logits(text):
  bias = PositionBias(text)
  rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32)) for x in (Q, KEY)]
  exact = bias(*rounded)
  # Biases that do not depend on queries and keys do not depend on their type.
  tolerance = 0.02 * np.abs(exact).max() if bias.instance.reads_content else 0
  np.testing.assert_allclose(bias(*rounded, dtype=jnp.bfloat16), exact, rtol=0, atol=tolerance)


def test_layers_of_a_model_share_one_table():
  paths = [
    jax.tree_util.keystr(path)
    for path, _ in jax.tree_util.tree_leaves_with_path(
      tiny.boxed(tiny.decoder(position='t5(8, 9)')), is_leaf=lambda x: hasattr(x, 'names')
    )
  ]
  assert [path for path in paths if 'position' in path] == ["['position_0']['table']"]


@pytest.mark.parametrize(
  'text, message',
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
    ('fire(hidden=0)', 'hidden=0 must be at least 1'),
    ('fire(threshold=-1.0)', 'threshold=-1.0 must be above 0'),
  ],
)
def test_invalid_settings(text, message):
  with pytest.raises(ValueError, match=message):
    spec.factory(text, *collect.SLOTS['position'], width=D, heads=H, head_width=C, length=64)


def test_transformer_xl_requires_an_even_width():
  with pytest.raises(ValueError, match='model.width=15 is odd'):
    spec.factory('transformer_xl', tfm.positions, Position, width=15, heads=3, head_width=5, length=64)


@pytest.mark.parametrize('text', ['t5(8, 9)', 'deberta(6)'])
def test_blocks_that_share_a_table_must_have_equal_heads(text):
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
