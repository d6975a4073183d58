"""Length extrapolation: each target once, with the context that the protocol gives it, against the full softmax."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conformance import tiny
from tests.conformance.tiny import VOCAB
from tests.models import pairs
from tfm.data.tokens import Pairs, Tokens
from tfm.evaluation import length, length_picture
from tfm.evaluation.length import PROTOCOLS, Bin, Record, extrapolation
from tfm.evaluation.windows import Targets, Windows
from tfm.mixers.protocol import Context
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


EOS = 0
HERE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
# Of the end of a text no byte, of the others 1 … 4.
BYTES = np.arange(VOCAB) % 4 + (np.arange(VOCAB) > 0)
LENGTHS, STRIDE = (4, 8, 12), 3  # whole rows of 24; the stride divides 12 and neither 4 nor 8


def text(*sizes, vocab=VOCAB):
  """A split of documents of some sizes, and its running text."""
  documents = [np.random.default_rng(i).integers(1, vocab, n) for i, n in enumerate(sizes)]
  offsets = np.cumsum([0, *sizes])
  running = np.concatenate([np.append(document, EOS) for document in documents])
  return Tokens('a book', np.concatenate(documents).astype(np.uint16), offsets, EOS, 0), running


def numbered(count):
  """A split whose every target is its own number, and the end of a text the last."""
  return Tokens('numbers', np.arange(count - 1).astype(np.uint16), np.array([0, count - 1]), count - 1, 0)


def measured(model, params, tokens, lengths=LENGTHS, **asked):
  return extrapolation(
    model,
    params,
    tokens,
    lengths,
    **dict(
      token_bytes=BYTES, sharding=HERE, protocols=tuple(PROTOCOLS), stride=STRIDE, batch_tokens=40, chunk=7
    )
    | asked,
  )


def context(target, T, protocol, stride=STRIDE, span=24):
  """The first token that a target's row reads, by the words of the protocol; rows begin anew with every span."""
  first = target // span * span
  if protocol == 'nonoverlapping':
    return target - (target - first) % T
  block = target - (target - first) % stride
  return max(0, block + stride - T)


# ---- rows


@pytest.mark.parametrize('T, stride', [(4, 4), (8, 8), (8, 3), (12, 1), (12, 12), (1, 1)])
@pytest.mark.parametrize('count, limit', [(24, 0), (61, 0), (240, 50)])
def test_each_target_counts_once_with_its_context(T, stride, count, limit):
  targets = Targets(numbered(count), LENGTHS, limit)
  rows = Windows(targets, T, stride)
  seen = {}
  for i in range(len(rows)):
    row = rows[i]
    n = int(row['segments'].sum())
    # What there is stands in front: a piece of the text, whose every input is the target before.
    assert (row['segments'][:n] == 1).all() and (row['positions'][:n] == np.arange(n)).all()
    begin = int(row['targets'][0])
    assert (row['targets'][:n] == begin + np.arange(n)).all()
    assert row['inputs'][0] == (begin - 1) % count and (row['inputs'][1:n] == row['targets'][: n - 1]).all()
    # Behind it is padding, which does not count.
    assert all(not row[field][n:].any() for field in row)
    for at in np.flatnonzero(row['counted']):
      target = int(row['targets'][at])
      assert target not in seen
      seen[target] = begin
  expected = range(count) if not limit else [*range(0, 24), *range(120, 144)]
  assert sorted(seen) == list(expected)
  protocol = 'nonoverlapping' if stride == T else 'sliding'
  for target, begin in seen.items():
    assert begin == context(target, T, protocol, stride)
    if protocol == 'sliding':
      assert target - begin >= min(T - stride, target)


def test_a_limit_takes_whole_spans_from_all_over_the_split():
  targets = Targets(numbered(24 * 10 + 5), LENGTHS, 24 * 4 + 23)
  assert targets.spans == [(24 * i, 24 * i + 24) for i in (0, 2, 5, 7)] and len(targets) == 96
  assert (
    Targets(numbered(61), LENGTHS, 61).spans
    == Targets(numbered(61), LENGTHS).spans
    == [(0, 24), (24, 48), (48, 61)]
  )


def test_the_bytes_of_the_targets():
  tokens, running = text(30, 9, 40)
  assert Targets(tokens, LENGTHS).bytes(BYTES) == BYTES[running].sum()
  assert Targets(tokens, LENGTHS, 24).bytes(BYTES) == BYTES[running[:24]].sum()


@pytest.mark.parametrize(
  'make, sentence',
  [
    (lambda: Targets(numbered(50), ()), 'at least one of them and each 1 or more'),
    (lambda: Targets(numbered(50), (0, 4)), r'lengths=\(0, 4\) must be whole numbers'),
    (
      lambda: Targets(numbered(50), (25, 51)),
      'numbers has 50 tokens, which do not fill one row of length=51',
    ),
    (
      lambda: Targets(numbered(50), LENGTHS, 23),
      'targets=23 is less than the 24 tokens that are whole rows of every',
    ),
    (lambda: Targets(numbered(50), LENGTHS, -1), 'targets=-1 is less'),
    (lambda: Targets(Pairs('couples', numbered(50), numbered(50)), LENGTHS), 'couples is not of texts alone'),
    (
      lambda: Windows(Targets(numbered(50), LENGTHS), 4, 5),
      r'stride=5 must lie in 1 … 4, the length of a row',
    ),
    (lambda: Windows(Targets(numbered(50), LENGTHS), 4, 0), 'stride=0 must lie'),
  ],
)
def test_rows_that_are_refused(make, sentence):
  with pytest.raises(ValueError, match=sentence):
    make()


# ---- losses


@functools.cache
def model(position='rope'):
  made = tiny.decoder(12, position=position, layers=1)
  return made, tiny.parameters(made)


def only(params, **kept):
  """Parameters that are all 0 but for those of some modules, and norms that change nothing."""

  def keep(path, x):
    names = [entry.key for entry in path]
    return x if names[0] in kept else np.full(x.shape, names[-1] == 'scale', np.float32)

  return jax.tree_util.tree_map_with_path(keep, params)


def softmax_losses(logits, targets):
  """-log softmax(logits)[target] in float64, [N] of [N V]."""
  logits = np.asarray(logits, np.float64)
  return np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(targets)), targets]


def direct(made, params, running, T, protocol):
  """(loss, position) of every target, each from a row of its own that ends with it."""
  stream = np.append(EOS, running)
  begins = np.array([context(t, T, protocol) for t in range(len(running))])
  rows = np.zeros((len(running), max(LENGTHS)), np.int32)
  for target, begin in enumerate(begins):
    rows[target, : target + 1 - begin] = stream[begin : target + 1]
  places = np.arange(len(running)) - begins
  logits = forward(made, params, rows)
  return softmax_losses(logits[np.arange(len(running)), places], running), places


@functools.partial(jax.jit, static_argnums=0)
def forward(made, params, tokens):
  return made.apply({'params': params}, tokens, Context.whole(tokens))[0]


@pytest.mark.parametrize('position', ['rope', 'learned'])
def test_losses_are_those_of_the_full_softmax(position):
  made, params = model(position)
  tokens, running = text(30, 9, 17)
  records = measured(made, params, tokens, stride=3)
  assert [(r.protocol, r.length, r.stride) for r in records] == [
    ('nonoverlapping', 4, 4),
    ('nonoverlapping', 8, 8),
    ('nonoverlapping', 12, 12),
    ('sliding', 4, 3),
    ('sliding', 8, 3),
    ('sliding', 12, 3),
  ]
  for r in records:
    losses, places = direct(made, params, running, r.length, r.protocol)
    assert r.tokens == len(running)
    assert r.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert r.perplexity == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    assert r.bits_per_byte == pytest.approx(losses.sum() / np.log(2) / BYTES[running].sum(), rel=1e-5)
    assert sum(b.tokens for b in r.positions) == len(running)
    for b in r.positions:
      here = (places >= b.first) & (places <= b.last)
      assert b.tokens == here.sum() and b.loss == pytest.approx(losses[here].mean(), rel=1e-5)


def test_a_model_that_sees_only_how_much_stands_before():
  """The loss of a target is that of its position, whatever stands there: what is counted where cannot hide."""
  made, params = model('learned')
  params = only(params, position_0=True, output=True)
  tokens, running = text(30, 9, 32)
  by_position = forward(made, params, np.zeros((1, 12), np.int32))[0]
  assert np.abs(np.diff(np.asarray(by_position), axis=0)).max() > 0.1
  for r in measured(made, params, tokens):
    places = np.array([t - context(t, r.length, r.protocol) for t in range(len(running))])
    expected = softmax_losses(by_position[places], running)
    assert r.loss == pytest.approx(expected.mean(), rel=1e-5)
    if r.protocol == 'sliding' and r.length == 12:
      assert set(places[12:]) == {9, 10, 11}


def test_a_bigram_model_is_as_good_at_every_length():
  made, params = model()
  params = only(params, embedding=True, output=True)
  tokens, _ = text(30, 9, 32)
  losses = [r.loss for r in measured(made, params, tokens)]
  np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
  # And context is what makes lengths differ in others.
  assert np.ptp([r.loss for r in measured(*model(), tokens)]) > 1e-3


def test_a_limit_and_batches_change_no_target():
  """Fewer rows at once, none in pieces, on one device or eight: the same sums."""
  tokens, running = text(90, 11, 61)
  made, params = model()
  mesh, rules = meshes.make(dict(data=4, fsdp=2)), sharding.parse_rules(dict(batch='data fsdp'))
  asked = dict(lengths=(12,), targets=100)
  one = measured(made, params, tokens, **asked)
  other = measured(made, params, tokens, **asked, batch_tokens=1, chunk=0)
  with sharding.context(mesh, rules):
    eight = measured(
      made, params, tokens, **asked, sharding=sharding.batch_sharding(mesh, rules), batch_tokens=1000
    )
  assert {r.tokens for r in one} == {96}
  for found in (other, eight):
    for a, b in zip(one, found, strict=True):
      assert (a.length, a.protocol, a.tokens) == (b.length, b.protocol, b.tokens)
      np.testing.assert_allclose(b.loss, a.loss, rtol=1e-6)
      np.testing.assert_allclose([x.loss for x in b.positions], [x.loss for x in a.positions], rtol=1e-5)


def test_many_models_at_once():
  """vmap over parameters gives each model's own sums."""
  made, params = model()
  others = tiny.parameters(made, seed=1)
  rows = Windows(Targets(text(30)[0], (8,)), 8, 3)
  batch = jax.tree.map(lambda *x: np.stack(x), *(rows[i] for i in range(5)))
  stacked = jax.tree.map(lambda *x: np.stack(x), params, others)
  both = jax.vmap(lambda p: length.position_sums(made, p, batch, 7))(stacked)
  for i, p in enumerate((params, others)):
    for name, x in length.position_sums(made, p, batch, 7).items():
      np.testing.assert_allclose(both[name][i], x, rtol=1e-5)


# ---- what cannot be


def test_learned_positions_end():
  tokens, running = text(30, 9, 32)
  records = measured(
    *model('learned'), tokens, lengths=(6, 12, 24), protocols=('nonoverlapping',), stride=None
  )
  assert [r.impossible for r in records] == [
    '',
    '',
    'impossible: Learned has 12 positions, and rows of 24 tokens need as many',
  ]
  assert records[2] == Record(24, 'nonoverlapping', 24, impossible=records[2].impossible)
  assert all(r.tokens == len(running) and r.loss > 0 for r in records[:2])
  # The same targets as where all lengths are possible.
  everywhere = measured(*model(), tokens, lengths=(6, 12, 24), protocols=('nonoverlapping',), stride=None)
  assert {r.tokens for r in everywhere} == {len(running)} and not any(r.impossible for r in everywhere)


def test_a_loss_that_is_no_number_is_told():
  made, params = model()
  params = params | dict(output=jax.tree.map(lambda x: x * jnp.nan, params['output']))
  [r] = measured(made, params, text(30)[0], lengths=(8,), protocols=('nonoverlapping',))
  assert r.impossible == 'impossible: in rows of 8 tokens the loss is nan' and r.loss is None


@pytest.mark.parametrize(
  'make, asked, sentence',
  [
    (
      lambda: tiny.decoder(12, mask='prefix'),
      {},
      "a mask of the model reads prefixes.*mask='causal' would do",
    ),
    (lambda: pairs.made()[0], {}, 'EncoderDecoder does not go on with a running text.*a decoder does'),
    (
      lambda: model()[0],
      dict(protocols=('slidign',)),
      "protocol='slidign' is not there.*did you mean 'sliding'",
    ),
    (lambda: model()[0], dict(stride=5, protocols=('sliding',)), 'stride=5 must lie in 1 … 4'),
  ],
)
def test_refusals(make, asked, sentence):
  with pytest.raises(ValueError, match=sentence):
    measured(make(), None, text(30)[0], **asked)


# ---- bins and picture


@pytest.mark.parametrize('T', [1, 2, 7, 64, 100])
def test_bins_hold_every_position_once(T):
  random = np.random.default_rng(0)
  tokens, loss = random.integers(1, 9, T).astype(float), random.random(T)
  bins = length.binned(loss, tokens)
  assert [p for b in bins for p in range(b.first, b.last + 1)] == list(range(T))
  for b in bins:
    here = slice(b.first, b.last + 1)
    assert (b.tokens, b.loss) == (tokens[here].sum(), pytest.approx(loss[here].sum() / tokens[here].sum()))
  # Their widths grow with the position: four to a doubling.
  assert all(b.last - b.first <= 0.2 * b.first for b in bins)
  assert len(bins) <= 1 + 4 * T.bit_length()
  if T == 64:
    assert (bins[0].last, bins[1].first, bins[-1]) == (0, 1, dataclasses.replace(bins[-1], first=53, last=63))


def test_bins_without_targets_are_left_out():
  tokens = np.zeros(64)
  tokens[[0, 63]] = 1, 2
  assert length.binned(np.full(64, 5.0), tokens) == (Bin(0, 0, 5.0, 1), Bin(53, 63, 27.5, 2))


def test_a_picture_with_a_length_that_is_impossible(tmp_path):
  bins = tuple(Bin(i, i, 5.0 - i, 10) for i in range(4))
  one = Record(4, 'sliding', 2, 40, 3.0, 20.0, 2.0, bins)
  assert length_picture.usual(one) == [bins[2], bins[3]]
  assert length_picture.usual(dataclasses.replace(one, protocol='nonoverlapping', stride=4)) == list(bins)
  records = [
    one,
    dataclasses.replace(one, length=8, loss=3.5),
    Record(16, 'sliding', 2, impossible='impossible: …'),
  ]
  for name, found in (('a', records), ('b', records[2:])):
    length_picture.draw(found, 8, 'a run', tmp_path / f'{name}.png')
    assert (tmp_path / f'{name}.png').stat().st_size > 10_000
