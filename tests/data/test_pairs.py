"""Packed and bucketed pairs: each once per epoch, contiguous, and row i a function of its
index.
"""

import collections
import dataclasses
import logging

import numpy as np
import pytest

from tfm import spec
from tfm.data import packing, pipeline
from tfm.data.packing import protocol
from tfm.data.tokens import Pairs


LENGTH = 16
SPECS = (
  'first_fit',
  'first_fit(bins=2)',
  'buckets',
  'buckets(least=3)',
  'buckets(least=3, ratio=1.1)',
  'padded',
)


@pytest.fixture(scope='module')
def pairs(make_tokens):
  """Pairs of all lengths that fit with their ends, and two that do not."""
  draw = np.random.default_rng(0)
  source, target = draw.integers(0, LENGTH, (2, 60))
  source[7], target[20] = LENGTH, 3 * LENGTH
  return Pairs('made up', make_tokens(source), make_tokens(target))


@pytest.fixture(params=SPECS)
def pack(request):
  return spec.build(request.param, packing, protocol.Packing)


def fitting(pairs):
  return collections.Counter(
    (tuple(pairs.source.document(d).tolist()), tuple(pairs.target.document(d).tolist()))
    for d in range(pairs.source.documents)
    if pairs.sequence_lengths[d].max() <= LENGTH
  )


def read(batch):
  """Returns the pairs of a batch; checks that each is contiguous, with its positions and inputs."""
  counts = collections.Counter()
  for b in range(len(batch['inputs'])):
    row = {name: x[b] for name, x in batch.items()}
    assert set(row['segments']) - {0} == set(row['source_segments']) - {0}
    for segment in set(row['segments']) - {0}:
      span, source_span = row['segments'] == segment, row['source_segments'] == segment
      assert (np.diff(np.flatnonzero(span)) == 1).all() and (np.diff(np.flatnonzero(source_span)) == 1).all()
      target, source = row['targets'][span], row['source'][source_span]
      np.testing.assert_array_equal(row['inputs'][span], np.roll(target, 1))
      np.testing.assert_array_equal(row['positions'][span], np.arange(len(target)))
      np.testing.assert_array_equal(row['source_positions'][source_span], np.arange(len(source)))
      counts[tuple(source.tolist()), tuple(target.tolist())] += 1
  return counts


def test_sources_and_targets_have_the_prefix_of_their_tokenizer(pack, pairs):
  """The decoder's first input is `bos`, and a source begins with its prefix."""
  framed = Pairs(
    'made up', dataclasses.replace(pairs.source, prefix=(7, 8)), dataclasses.replace(pairs.target, bos=9)
  )
  assert framed.sequence_lengths.tolist() == (pairs.sequence_lengths + [2, 0]).tolist()
  count = 0
  for batch in pipeline.evaluation_batches(pack.evaluation_rows(framed, LENGTH), 4):
    for b in range(len(batch['inputs'])):
      row = {name: x[b] for name, x in batch.items()}
      for segment in set(row['segments']) - {0}:
        span, source_span = row['segments'] == segment, row['source_segments'] == segment
        assert row['inputs'][span].tolist() == [9, *row['targets'][span][:-1]] and row['source'][source_span][
          :2
        ].tolist() == [7, 8]
        count += 1
  assert count == sum(framed.sequence_lengths.max(1) <= LENGTH)


def test_evaluation_reads_every_pair_once(pack, pairs):
  counts = collections.Counter()
  for batch in pipeline.evaluation_batches(pack.evaluation_rows(pairs, LENGTH), 4):
    counts += read(batch)
  assert counts == fitting(pairs)


def test_every_epoch_reads_every_pair_once_in_its_own_order(pack, pairs):
  rows = pack.rows(pairs, LENGTH, seed=3)
  iterator, expected, orders = pipeline.train_iterator(rows, 1), fitting(pairs), []
  for _ in range(2):
    counts, order = collections.Counter(), []
    while counts.total() < expected.total():
      batch = next(iterator)
      counts += read(batch)
      order.append(batch['source'].tobytes())
    assert counts == expected
    orders.append(order)
  assert orders[0] != orders[1]
  assert [next(pipeline.train_iterator(pack.rows(pairs, LENGTH, seed=3), 1))['source'].tobytes()] == orders[
    0
  ][:1]


def test_long_pairs_are_skipped_with_a_warning(pack, pairs, make_tokens, caplog):
  with caplog.at_level(logging.WARNING):
    pack.evaluation_rows(pairs, LENGTH)
  assert (
    f'made up: 2 of 60 pairs are longer than {LENGTH} tokens and are skipped; '
    f'the longest has {3 * LENGTH + 1}' in caplog.text
  )
  with pytest.raises(ValueError, match='has no pair within length=3 '):
    pack.evaluation_rows(Pairs('made up', make_tokens([5]), make_tokens([1])), 3)


@pytest.mark.parametrize(
  'ratio, expected', [(2.0, {(2, 16), (4, 8), (8, 4)}), (1.3, {(2, 16), (4, 8), (6, 5), (10, 3)})]
)
def test_batches_of_buckets_have_about_equal_tokens(pairs, ratio, expected):
  rows = spec.build(f'buckets(least=3, ratio={ratio})', packing, protocol.Packing).rows(pairs, LENGTH, seed=0)
  iterator, shapes, lengths = (
    pipeline.train_iterator(rows, 2),
    set(),
    sorted(length for _, length in expected),
  )
  for _ in range(rows_of_an_epoch := len(rows._plan_epoch(0, 2))):
    batch = next(iterator)
    shapes.add(batch['inputs'].shape)
    longest = max((batch[name] > 0).sum(1).max() for name in ('segments', 'source_segments'))
    # No narrower bucket would have held the longest of them.
    assert batch['inputs'].shape == batch['source'].shape
    assert batch['inputs'].shape[1] == next(length for length in lengths if length >= longest)
  assert shapes == expected and rows_of_an_epoch > 3


def test_a_row_of_a_bucket_is_segment_one(make_tokens):
  pairs = Pairs('made up', make_tokens([0, 3]), make_tokens([0, 2]))
  rows = spec.build('buckets(least=1)', packing, protocol.Packing).evaluation_rows(pairs, LENGTH)
  assert [rows[i]['segments'].tolist() for i in (0, 1)] == [[1], [1, 1, 1, 0]]
  assert [rows[i]['source_segments'].tolist() for i in (0, 1)] == [[1], [1, 1, 1, 1]]


@pytest.mark.parametrize('layout', ('blocks', 'tiles'))
def test_processes_share_a_batch(pack, pairs, layout, make_shares):
  """Batches of shorter rows have more of them, which the processes share in the same proportion."""
  rows, shares = pack.rows(pairs, LENGTH, seed=1), make_shares(4, 2, layout)
  whole, parts = (
    pipeline.train_iterator(rows, 4),
    [pipeline.train_iterator(rows, 4, share) for share in shares],
  )
  for _ in range(6):
    batch, halves = next(whole), [next(part) for part in parts]
    for name, x in batch.items():
      for half, share in zip(halves, shares):
        np.testing.assert_array_equal(half[name], x[share.scale(len(x)).rows])
    assert pipeline.add_hashes(map(pipeline.batch_hash, halves, shares)) == pipeline.batch_hash(batch)


def test_a_state_resumes(pack, pairs):
  rows = pack.rows(pairs, LENGTH, seed=1)
  first, second = (pipeline.train_iterator(rows, 2) for _ in range(2))
  for _ in range(5):
    next(first)
  second.set_state(first.get_state())
  for _ in range(4):
    a, b = next(first), next(second)
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_buckets_reject_text(make_tokens):
  assert ('text',) not in spec.build('buckets', packing, protocol.Packing).document_kinds
  with pytest.raises(ValueError, match='least=0 must be at least 1'):
    spec.build('buckets(least=0)', packing, protocol.Packing)
  with pytest.raises(ValueError, match=r'ratio=1.0 must be above 1'):
    spec.build('buckets(ratio=1.0)', packing, protocol.Packing)
