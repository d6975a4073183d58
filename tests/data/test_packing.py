"""Packings: every token is predicted exactly once, and row i is a function of its index."""

import collections
import random

import numpy as np
import pytest

from tests.data.distinct_tokens import make_tokens
from tfm import spec
from tfm.data import packing
from tfm.data.packing import concat, padded, protocol


SPECS = 'concat', 'concat(shuffle=False)', 'first_fit', 'first_fit(bins=1)', 'first_fit(bins=3)'


def build(text: str) -> protocol.Packing:
  return spec.build(text, packing, protocol.Packing)


def random_lengths(seed: int, length: int) -> list[int]:
  draw = random.Random(seed)
  edges = (0, 0, 1, 2, length - 2, length - 1, length, length + 1, 2 * length - 1, 2 * length, 5 * length)
  lengths = [
    max(0, draw.choice([draw.choice(edges), draw.randrange(3 * length)]))
    for _ in range(draw.randrange(1, 40))
  ]
  return [*lengths, length]  # long enough for one row


def targets(rows) -> collections.Counter:
  return collections.Counter(int(t) for row in rows for t in row['targets'][row['segments'] > 0])


def expected(tokens) -> collections.Counter:
  return collections.Counter([*tokens.ids.tolist(), *[tokens.eos_id] * tokens.documents])


def epoch_targets(rows, epoch: int) -> list[int]:
  """Returns the counted targets of one epoch, in the order of the rows.

  It counts from the first row on, so concat must not shuffle.
  """
  size, stream, index = rows.tokens_per_epoch, [], 0
  while len(stream) < (epoch + 1) * size:
    row = rows[index]
    stream.extend(row['targets'][row['segments'] > 0].tolist())
    index += 1
  return stream[epoch * size : (epoch + 1) * size]


def check_row(row, tokens, length):
  """Checks the shape of a row, and that each input precedes its target."""
  assert set(row) == set(protocol.FIELDS)
  for value in row.values():
    assert value.shape == (length,) and value.dtype == np.int32
  valid = row['segments'] > 0
  assert not np.any(np.diff(valid.astype(int)) > 0)  # padding is last
  assert all(not row[field][~valid].any() for field in protocol.FIELDS)
  starts = {int(i) + 1 for i in tokens.offsets[:-1]}
  for source, target in zip(row['inputs'][valid].tolist(), row['targets'][valid].tolist()):
    if target == tokens.eos_id:
      assert source == tokens.eos_id or source in {int(i) for i in tokens.offsets[1:]}
    else:
      assert source == (tokens.eos_id if target in starts else target - 1)


@pytest.mark.parametrize('text', SPECS)
@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('length', (1, 2, 7, 32))
def test_an_evaluation_pass_predicts_every_token_once(text, seed, length):
  tokens = make_tokens(random_lengths(seed, length))
  rows = build(text).evaluation_rows(tokens, length)
  assert targets(rows) == expected(tokens)
  assert rows.tokens_per_epoch == tokens.targets == sum(expected(tokens).values())
  for row in rows:
    check_row(row, tokens, length)
    assert row['segments'].any()
  with pytest.raises(IndexError):
    rows[len(rows)]


@pytest.mark.parametrize('text', SPECS[1:])
@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('length', (1, 5, 16))
def test_every_epoch_predicts_every_token_once(text, seed, length):
  tokens = make_tokens(random_lengths(seed, length))
  rows = build(text).rows(tokens, length, seed)
  for epoch in range(3):
    assert collections.Counter(epoch_targets(rows, epoch)) == expected(tokens)
  for index in range(20):
    check_row(rows[index], tokens, length)


@pytest.mark.parametrize('text', SPECS)
def test_a_row_is_a_function_of_seed_and_index(text):
  tokens = make_tokens(random_lengths(1, 16))
  forward, backward = (build(text).rows(tokens, 16, seed=3) for _ in range(2))
  reference = [forward[i] for i in range(60)]
  for index in reversed(range(60)):
    for field in protocol.FIELDS:
      np.testing.assert_array_equal(backward[index][field], reference[index][field])
  far = forward[10**12]
  np.testing.assert_array_equal(far['targets'], backward[10**12]['targets'])


@pytest.mark.parametrize('text', SPECS)
def test_seeds_and_epochs_have_their_own_order(text):
  tokens = make_tokens([5, 9, 3, 16, 2, 7, 11, 4, 8, 6] * 4)
  rows = build(text).rows(tokens, 16, seed=0)
  first, second = epoch_targets(rows, 0), epoch_targets(rows, 1)
  other = epoch_targets(build(text).rows(tokens, 16, seed=1), 0)
  in_order = [
    t for row in build(text).evaluation_rows(tokens, 16) for t in row['targets'][row['segments'] > 0].tolist()
  ]
  assert len({tuple(order) for order in (first, second, other, in_order)}) == 4


@pytest.mark.parametrize('window', (3, 2**20))
@pytest.mark.parametrize('length', (1, 5, 16))
def test_shuffling_rows_loses_none(length, window, monkeypatch):
  monkeypatch.setattr(concat, 'WINDOW', window)
  tokens = make_tokens(random_lengths(2, 16))
  stream = build('concat(shuffle=False)').rows(tokens, length, seed=4)
  shuffled = build('concat').rows(tokens, length, seed=4)
  size = min(tokens.targets // length, window)
  assert size > 1
  for first in range(0, 4 * size, size):  # window by window, over the ends of epochs
    reference, actual = (
      [[rows[i][f].tolist() for f in protocol.FIELDS] for i in range(first, first + size)]
      for rows in (stream, shuffled)
    )
    assert sorted(actual) == sorted(reference)
  assert [stream[i]['targets'].tolist() for i in range(4 * size)] != [
    shuffled[i]['targets'].tolist() for i in range(4 * size)
  ]


def test_every_window_has_its_own_order():
  tokens = make_tokens([799])
  stream = build('concat(shuffle=False)').rows(tokens, 16, seed=0)
  shuffled = build('concat').rows(tokens, 16, seed=0)
  first = [stream[i]['targets'].tolist() for i in range(50)]
  orders = [[first.index(shuffled[i]['targets'].tolist()) for i in range(n, n + 50)] for n in (0, 50)]
  assert sorted(orders[0]) == sorted(orders[1]) == list(range(50)) and orders[0] != orders[1]


def test_a_batch_of_concat_holds_many_documents():
  tokens = make_tokens([1000] * 50)  # documents that are longer than a batch
  rows = build('concat').rows(tokens, 16, seed=0)
  assert len({int(rows[i]['targets'][0]) // 1000 for i in range(32)}) > 15


def test_concat_is_the_documents_in_order():
  tokens = make_tokens([2, 0, 3])
  end = tokens.eos_id
  rows = build('concat').evaluation_rows(tokens, 3)
  assert [row['inputs'].tolist() for row in rows] == [[end, 1, 2], [end, end, 3], [4, 5, 0]]
  assert [row['targets'].tolist() for row in rows] == [[1, 2, end], [end, 3, 4], [5, end, 0]]
  assert [row['segments'].tolist() for row in rows] == [[1, 1, 1], [1, 1, 1], [1, 1, 0]]
  assert [row['positions'].tolist() for row in rows] == [[0, 1, 2], [0, 1, 2], [0, 1, 0]]


def test_concat_is_one_stream_across_rows_and_epochs():
  rows = build('concat(shuffle=False)').rows(make_tokens([3, 1, 4, 1, 5, 9]), 4, seed=0)
  for index in range(40):
    row, following = rows[index], rows[index + 1]
    assert row['inputs'][1:].tolist() == row['targets'][:-1].tolist()
    assert row['targets'][-1] == following['inputs'][0]
    assert row['segments'].tolist() == [1] * 4 and row['positions'].tolist() == [0, 1, 2, 3]
  assert rows[0]['inputs'][0] == 10**6


def test_first_fit_separates_documents():
  tokens = make_tokens([2, 7, 1, 0])
  end = tokens.eos_id
  rows = build('first_fit').evaluation_rows(tokens, 5)
  assert [row['inputs'].tolist() for row in rows] == [
    [end, 1, 2, end, 10],
    [end, 3, 4, 5, 6],
    [7, 8, 9, end, 0],
  ]
  assert [row['targets'].tolist() for row in rows] == [
    [1, 2, end, 10, end],
    [3, 4, 5, 6, 7],
    [8, 9, end, end, 0],
  ]
  assert [row['segments'].tolist() for row in rows] == [[1, 1, 1, 2, 2], [1, 1, 1, 1, 1], [1, 1, 1, 2, 0]]
  assert [row['positions'].tolist() for row in rows] == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4], [0, 1, 2, 0, 0]]


def test_first_fit_segments_restart_and_fill():
  draw = random.Random(0)
  tokens = make_tokens([draw.randrange(60) for _ in range(800)])
  rows = build('first_fit').rows(tokens, 64, seed=0)
  filled = []
  for index in range(100):
    row = rows[index]
    segments, positions = row['segments'], row['positions']
    valid = segments > 0
    filled.append(valid.mean())
    assert segments[0] == 1 and set(np.diff(segments[valid])) <= {0, 1}
    starts = np.flatnonzero(np.diff(segments[valid], prepend=0))
    assert not positions[starts].any()
    assert (np.diff(positions[valid])[np.diff(segments[valid]) == 0] == 1).all()
  assert np.mean(filled) > 0.9


def test_first_fit_closes_the_fullest_of_its_open_rows():
  tokens = make_tokens([6, 7, 2])  # with their ends: 7, 8 and 3, which fits beside 7
  assert [len(build(f'first_fit(bins={n})').evaluation_rows(tokens, 10)) for n in (1, 2)] == [3, 2]


@pytest.mark.parametrize('text', SPECS)
def test_a_split_shorter_than_a_row_is_rejected(text):
  tokens = make_tokens([3, 4])
  with pytest.raises(ValueError, match='made up is too short: 9 tokens .*length=10'):
    build(text).rows(tokens, 10, seed=0)
  assert build(text).rows(tokens, 9, seed=0)[0]['segments'].any()
  assert targets(build(text).evaluation_rows(tokens, 10)) == expected(tokens)


@pytest.mark.parametrize('text', SPECS)
def test_errors_name_the_field(text):
  tokens = make_tokens([30])
  with pytest.raises(ValueError, match='length=0'):
    build(text).evaluation_rows(tokens, 0)
  with pytest.raises(ValueError, match='seed=-1'):
    build(text).rows(tokens, 8, seed=-1)
  with pytest.raises(ValueError, match='bins=0'):
    build('first_fit(bins=0)')


def test_padded_has_one_text_per_row(caplog):
  tokens = make_tokens([3, 9, 0, 4])
  rows = build('padded').evaluation_rows(tokens, 5)
  assert 'made up: 1 of 4 texts are longer than 5 tokens' in caplog.text
  assert [row['targets'].tolist() for row in map(rows.__getitem__, range(3))] == [
    [1, 2, 3, tokens.eos_id, 0],
    [tokens.eos_id, 0, 0, 0, 0],
    [13, 14, 15, 16, tokens.eos_id],
  ]
  assert rows[0]['inputs'].tolist() == [tokens.eos_id, 1, 2, 3, 0] and rows[0]['segments'].tolist() == [
    1,
    1,
    1,
    1,
    0,
  ]
  epoch = [build('padded').rows(tokens, 5, seed=0)[i]['targets'].tobytes() for i in range(6)]
  assert {*epoch[:3]} == {*epoch[3:]} == {rows[i]['targets'].tobytes() for i in range(3)}


def test_the_row_of_a_text_that_is_too_long_is_empty(caplog):
  """As of infinitely many, whose lengths nobody knows before."""
  long, short = (padded.PaddedRows(make_tokens([3, 9]), 5, seed=None)[i] for i in (1, 0))
  assert 'made up[1] has 10 tokens, more than a row of 5, and is skipped' in caplog.text
  assert set(long) == set(short) == set(protocol.FIELDS)
  assert not any(x.any() for x in long.values()) and short['segments'].tolist() == [1, 1, 1, 1, 0]
