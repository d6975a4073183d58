"""Length extrapolation: each target counts once, with the context of its protocol; losses equal the full
softmax.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
import pytest

from tests.models import pairs
from tfm.conformance import tiny
from tfm.conformance.tiny import VOCAB
from tfm.data.tokens import Pairs, Tokens
from tfm.evaluation import length_extrapolation, length_plot
from tfm.evaluation.length_extrapolation import PROTOCOLS, Bin, LengthRecord, measure_extrapolation
from tfm.evaluation.sliding_windows import Targets, Windows
from tfm.mixers.protocol import Context
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


pytestmark = pytest.mark.slow
EOS = 0
ON_ONE_DEVICE = jax.sharding.SingleDeviceSharding(jax.devices()[0])
# No byte for the end of a text, 1 … 4 for the others.
BYTES = np.arange(VOCAB) % 4 + (np.arange(VOCAB) > 0)
LENGTHS, STRIDE = (4, 8, 12), 3  # whole rows of 24; the stride divides 12 and neither 4 nor 8


def text(*sizes, vocab=VOCAB):
  """A split of documents with the given sizes, and its running text."""
  documents = [np.random.default_rng(i).integers(1, vocab, n) for i, n in enumerate(sizes)]
  offsets = np.cumsum([0, *sizes])
  running = np.concatenate([np.append(document, EOS) for document in documents])
  return Tokens('a book', np.concatenate(documents).astype(np.uint16), offsets, EOS, 0), running


def numbered(count):
  """A split in which every target is its index; the last is the end of a text."""
  return Tokens('numbers', np.arange(count - 1).astype(np.uint16), np.array([0, count - 1]), count - 1, 0)


def evaluate(model, params, tokens, lengths=LENGTHS, **options):
  return measure_extrapolation(
    model,
    params,
    tokens,
    lengths,
    **dict(
      token_bytes=BYTES,
      sharding=ON_ONE_DEVICE,
      protocols=tuple(PROTOCOLS),
      stride=STRIDE,
      batch_tokens=40,
      chunk=7,
    )
    | options,
  )


def context(target, T, protocol, stride=STRIDE, span=24):
  """The first token in the row of a target; every span starts a new row."""
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
    # The row starts with a piece of the text; every input is the previous target.
    assert (row['segments'][:n] == 1).all() and (row['positions'][:n] == np.arange(n)).all()
    start = int(row['targets'][0])
    assert (row['targets'][:n] == start + np.arange(n)).all()
    assert row['inputs'][0] == (start - 1) % count and (row['inputs'][1:n] == row['targets'][: n - 1]).all()
    # Padding follows and does not count.
    assert all(not row[field][n:].any() for field in row)
    for at in np.flatnonzero(row['counted']):
      target = int(row['targets'][at])
      assert target not in seen
      seen[target] = start
  expected = range(count) if not limit else [*range(0, 24), *range(120, 144)]
  assert sorted(seen) == list(expected)
  protocol = 'nonoverlapping' if stride == T else 'sliding'
  for target, start in seen.items():
    assert start == context(target, T, protocol, stride)
    if protocol == 'sliding':
      assert target - start >= min(T - stride, target)


def test_a_limit_selects_spans_evenly():
  targets = Targets(numbered(24 * 10 + 5), LENGTHS, 24 * 4 + 23)
  assert targets.spans == [(24 * i, 24 * i + 24) for i in (0, 2, 5, 7)] and len(targets) == 96
  assert (
    Targets(numbered(61), LENGTHS, 61).spans
    == Targets(numbered(61), LENGTHS).spans
    == [(0, 24), (24, 48), (48, 61)]
  )


def test_bytes_of_the_targets():
  tokens, running = text(30, 9, 40)
  assert Targets(tokens, LENGTHS).bytes(BYTES) == BYTES[running].sum()
  assert Targets(tokens, LENGTHS, 24).bytes(BYTES) == BYTES[running[:24]].sum()


@pytest.mark.parametrize(
  'make, message',
  [
    (lambda: Targets(numbered(50), ()), 'must be a non-empty list of integers from 1 on'),
    (lambda: Targets(numbered(50), (0, 4)), r'lengths=\(0, 4\) must be a non-empty list'),
    (lambda: Targets(numbered(50), (25, 51)), 'numbers has 50 tokens, fewer than one row of length=51'),
    (lambda: Targets(numbered(50), LENGTHS, 23), 'targets=23 is less than 24, the least common multiple'),
    (lambda: Targets(numbered(50), LENGTHS, -1), 'targets=-1 is less'),
    (lambda: Targets(Pairs('couples', numbered(50), numbered(50)), LENGTHS), 'couples is not of texts alone'),
    (
      lambda: Windows(Targets(numbered(50), LENGTHS), 4, 5),
      r'stride=5 must lie in 1 … 4, the length of a row',
    ),
    (lambda: Windows(Targets(numbered(50), LENGTHS), 4, 0), 'stride=0 must lie'),
  ],
)
def test_invalid_rows_are_rejected(make, message):
  with pytest.raises(ValueError, match=message):
    make()


# ---- losses


@functools.cache
def model(position='rope'):
  model_ = tiny.decoder(12, position=position, layers=1)
  return model_, tiny.parameters(model_)


def only(params, **modules):
  """Parameters of some modules; the others are 0, and norm scales 1."""

  def keep(path, x):
    names = [entry.key for entry in path]
    return x if names[0] in modules else np.full(x.shape, names[-1] == 'scale', np.float32)

  return jax.tree_util.tree_map_with_path(keep, params)


def softmax_losses(logits, targets):
  """-log softmax(logits)[target] in float64, [N] of [N V]."""
  logits = np.asarray(logits, np.float64)
  return np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(targets)), targets]


def direct(model_, params, running, T, protocol):
  """(loss, position) of every target, from a separate row that ends with it."""
  stream = np.append(EOS, running)
  starts = np.array([context(t, T, protocol) for t in range(len(running))])
  rows = np.zeros((len(running), max(LENGTHS)), np.int32)
  for target, start in enumerate(starts):
    rows[target, : target + 1 - start] = stream[start : target + 1]
  places = np.arange(len(running)) - starts
  logits = forward(model_, params, rows)
  return softmax_losses(logits[np.arange(len(running)), places], running), places


@functools.partial(jax.jit, static_argnums=0)
def forward(model_, params, tokens):
  return model_.apply({'params': params}, tokens, Context.contiguous(tokens))[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize('position', ['rope', 'learned'])
def test_losses_equal_the_full_softmax(position):
  model_, params = model(position)
  tokens, running = text(30, 9, 17)
  records = evaluate(model_, params, tokens, stride=3)
  assert [(r.protocol, r.length, r.stride) for r in records] == [
    ('nonoverlapping', 4, 4),
    ('nonoverlapping', 8, 8),
    ('nonoverlapping', 12, 12),
    ('sliding', 4, 3),
    ('sliding', 8, 3),
    ('sliding', 12, 3),
  ]
  for r in records:
    losses, places = direct(model_, params, running, r.length, r.protocol)
    assert r.tokens == len(running)
    assert r.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert r.perplexity == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    assert r.bits_per_byte == pytest.approx(losses.sum() / np.log(2) / BYTES[running].sum(), rel=1e-5)
    assert sum(b.tokens for b in r.positions) == len(running)
    for b in r.positions:
      selected = (places >= b.first) & (places <= b.last)
      assert b.tokens == selected.sum() and b.loss == pytest.approx(losses[selected].mean(), rel=1e-5)


def test_a_model_that_depends_on_positions_only():
  """The loss of a target depends on its position only, which shows which position it was counted at."""
  model_, params = model('learned')
  params = only(params, position_0=True, output=True)
  tokens, running = text(30, 9, 32)
  by_position = forward(model_, params, np.zeros((1, 12), np.int32))[0]
  assert np.abs(np.diff(np.asarray(by_position), axis=0)).max() > 0.1
  for r in evaluate(model_, params, tokens):
    places = np.array([t - context(t, r.length, r.protocol) for t in range(len(running))])
    expected = softmax_losses(by_position[places], running)
    assert r.loss == pytest.approx(expected.mean(), rel=1e-5)
    if r.protocol == 'sliding' and r.length == 12:
      assert set(places[12:]) == {9, 10, 11}


def test_a_bigram_model_has_one_loss_at_every_length():
  model_, params = model()
  params = only(params, embedding=True, output=True)
  tokens, _ = text(30, 9, 32)
  losses = [r.loss for r in evaluate(model_, params, tokens)]
  np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
  # Other models differ between lengths.
  assert np.ptp([r.loss for r in evaluate(*model(), tokens)]) > 1e-3


def test_batches_chunks_and_devices_do_not_change_the_sums():
  tokens, running = text(90, 11, 61)
  model_, params = model()
  mesh, rules = meshes.make(dict(data=4, fsdp=2)), sharding.parse_rules(dict(batch='data fsdp'))
  options = dict(lengths=(12,), targets=100)
  one = evaluate(model_, params, tokens, **options)
  other = evaluate(model_, params, tokens, **options, batch_tokens=1, chunk=0)
  with sharding.context(mesh, rules):
    eight = evaluate(
      model_, params, tokens, **options, sharding=sharding.batch_sharding(mesh, rules), batch_tokens=1000
    )
  assert {r.tokens for r in one} == {96}
  for other_records in (other, eight):
    for a, b in zip(one, other_records, strict=True):
      assert (a.length, a.protocol, a.tokens) == (b.length, b.protocol, b.tokens)
      np.testing.assert_allclose(b.loss, a.loss, rtol=1e-6)
      np.testing.assert_allclose([x.loss for x in b.positions], [x.loss for x in a.positions], rtol=1e-5)


def test_vmap_over_parameters_gives_the_sums_of_each_model():
  model_, params = model()
  others = tiny.parameters(model_, seed=1)
  rows = Windows(Targets(text(30)[0], (8,)), 8, 3)
  batch = jax.tree.map(lambda *x: np.stack(x), *(rows[i] for i in range(5)))
  stacked = jax.tree.map(lambda *x: np.stack(x), params, others)
  both = jax.vmap(lambda p: length_extrapolation.sum_by_position(model_, p, batch, 7))(stacked)
  for i, p in enumerate((params, others)):
    for name, x in length_extrapolation.sum_by_position(model_, p, batch, 7).items():
      np.testing.assert_allclose(both[name][i], x, rtol=1e-5)


# ---- invalid lengths and models


def test_lengths_beyond_learned_positions_are_impossible():
  tokens, running = text(30, 9, 32)
  records = evaluate(
    *model('learned'), tokens, lengths=(6, 12, 24), protocols=('nonoverlapping',), stride=None
  )
  assert [r.impossible for r in records] == [
    '',
    '',
    'impossible: Learned has 12 positions, and rows have 24 tokens',
  ]
  assert records[2] == LengthRecord(24, 'nonoverlapping', 24, impossible=records[2].impossible)
  assert all(r.tokens == len(running) and r.loss > 0 for r in records[:2])
  # The targets do not depend on which lengths are possible.
  everywhere = evaluate(*model(), tokens, lengths=(6, 12, 24), protocols=('nonoverlapping',), stride=None)
  assert {r.tokens for r in everywhere} == {len(running)} and not any(r.impossible for r in everywhere)


def test_a_nan_loss_is_reported():
  model_, params = model()
  params = params | dict(output=jax.tree.map(lambda x: x * jnp.nan, params['output']))
  [r] = evaluate(model_, params, text(30)[0], lengths=(8,), protocols=('nonoverlapping',))
  assert r.impossible == 'impossible: in rows of 8 tokens the loss is nan' and r.loss is None


@pytest.mark.parametrize(
  'make, options, message',
  [
    (
      lambda: tiny.decoder(12, mask='prefix'),
      {},
      "a mask of the model reads prefixes.*use a decoder with mask='causal'",
    ),
    (
      lambda: pairs.make_model()[0],
      {},
      'EncoderDecoder cannot be evaluated at several lengths.*use a decoder',
    ),
    (
      lambda: model()[0],
      dict(protocols=('slidign',)),
      "protocol='slidign' is unknown.*did you mean 'sliding'",
    ),
    (lambda: model()[0], dict(stride=5, protocols=('sliding',)), 'stride=5 must lie in 1 … 4'),
  ],
)
def test_invalid_arguments_are_rejected(make, options, message):
  with pytest.raises(ValueError, match=message):
    evaluate(make(), None, text(30)[0], **options)


# ---- bins and picture


@pytest.mark.parametrize('T', [1, 2, 7, 64, 100])
def test_bins_contain_every_position_once(T):
  random = np.random.default_rng(0)
  tokens, loss = random.integers(1, 9, T).astype(float), random.random(T)
  bins = length_extrapolation.bin_positions(loss, tokens)
  assert [p for b in bins for p in range(b.first, b.last + 1)] == list(range(T))
  for b in bins:
    selected = slice(b.first, b.last + 1)
    assert (b.tokens, b.loss) == (
      tokens[selected].sum(),
      pytest.approx(loss[selected].sum() / tokens[selected].sum()),
    )
  # Their widths grow with the position: four per doubling.
  assert all(b.last - b.first <= 0.2 * b.first for b in bins)
  assert len(bins) <= 1 + 4 * T.bit_length()
  if T == 64:
    assert (bins[0].last, bins[1].first, bins[-1]) == (0, 1, dataclasses.replace(bins[-1], first=53, last=63))


def test_empty_bins_are_omitted():
  tokens = np.zeros(64)
  tokens[[0, 63]] = 1, 2
  assert length_extrapolation.bin_positions(np.full(64, 5.0), tokens) == (
    Bin(0, 0, 5.0, 1),
    Bin(53, 63, 27.5, 2),
  )


def test_a_picture_with_an_impossible_length(tmp_path, monkeypatch):
  bins = tuple(Bin(i, i, 5.0 - i, 10) for i in range(4))
  one = LengthRecord(4, 'sliding', 2, 40, 3.0, 20.0, 2.0, bins)
  assert length_plot.full_bins(one) == [bins[2], bins[3]]
  assert length_plot.full_bins(dataclasses.replace(one, protocol='nonoverlapping', stride=4)) == list(bins)
  records = [
    one,
    dataclasses.replace(one, length=8, loss=3.5),
    LengthRecord(16, 'sliding', 2, impossible='impossible: …'),
  ]
  figures = []
  save = matplotlib.figure.Figure.savefig

  def record(figure, *file, **options):
    figures.append(figure)
    save(figure, *file, **options)

  monkeypatch.setattr(matplotlib.figure.Figure, 'savefig', record)
  for name, drawn in (('a', records), ('b', records[2:])):
    length_plot.draw(drawn, 8, 'a run', tmp_path / f'{name}.png')
    assert (tmp_path / f'{name}.png').stat().st_size > 10_000
  losses, places = figures[0].axes
  assert figures[0].get_suptitle() == 'a run'
  assert [line.get_xydata().tolist() for line in losses.lines[:1]] == [[[4, 3.0], [8, 3.5]]]
  assert losses.get_xlabel().endswith('impossible: 16') and places.get_xlabel().startswith('sliding')
  assert [line.get_label() for line in places.lines[:2]] == ['4', '8']
