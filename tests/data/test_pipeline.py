"""Batches: the same sequence on any number of processes, and across a resume."""

import itertools
import json
from fractions import Fraction

import numpy as np
import pytest

from tests.data.distinct_tokens import make_tokens
from tfm import spec
from tfm.data import packing, pipeline
from tfm.data.mixture import MixedDocuments
from tfm.data.packing import protocol
from tfm.data.tokenizers.bytes import Bytes


SPECS = 'concat', 'first_fit(bins=4)'
LENGTHS = [5, 0, 40, 3, 17, 1, 9, 22, 8, 31, 2]
WEIGHTS = dict(large=Fraction(7, 10), small=Fraction(1, 5), tiny=Fraction(1, 10))


@pytest.fixture(params=SPECS)
def pack(request) -> protocol.Packing:
  return spec.build(request.param, packing, protocol.Packing)


@pytest.fixture(params=['source', 'mixture'])
def tokens(request):
  """The tokens of one source, or of a mixture, whose small parts are repeated."""
  if request.param == 'source':
    return make_tokens(LENGTHS)
  parts = dict(large=make_tokens(LENGTHS), small=make_tokens([9, 14]), tiny=make_tokens([3, 7, 1]))
  return MixedDocuments('mixed', WEIGHTS, parts)


def take(iterator, count):
  try:
    return list(itertools.islice(iterator, count))
  finally:
    iterator.close()


def join(parts, shares):
  """The batch of the parts of several processes."""
  result = {
    field: np.full((shares[0].batch_size, *x.shape[1:]), -1, x.dtype) for field, x in parts[0].items()
  }
  for part, share in zip(parts, shares, strict=True):
    for field, x in part.items():
      result[field][share.rows] = x
  return result


def same(a, b):
  return all(np.array_equal(a[field], b[field]) for field in protocol.FIELDS)


@pytest.mark.parametrize('layout', ('blocks', 'tiles'))
@pytest.mark.parametrize('count', (2, 4))
def test_batches_do_not_depend_on_the_number_of_processes(pack, count, layout, tokens, make_shares):
  rows, shares = pack.rows(tokens, 8, seed=0), make_shares(8, count, layout)
  whole = take(pipeline.train_iterator(rows, 8), 12)
  parts = [take(pipeline.train_iterator(rows, 8, share), 12) for share in shares]
  for batch, split in zip(whole, zip(*parts, strict=True), strict=True):
    assert all(part['inputs'].shape == (8 // count, 8) for part in split)
    assert same(join(split, shares), batch)
    hashes = map(pipeline.batch_hash, split, shares)
    assert pipeline.add_hashes(hashes) == pipeline.batch_hash(batch)
  assert not same(whole[0], whole[1])


def test_batch_k_holds_its_rows(pack, tokens):
  rows = pack.rows(tokens, 8, seed=0)
  for k, batch in enumerate(take(pipeline.train_iterator(rows, 4), 6)):
    for index in range(4):
      assert all(np.array_equal(batch[f][index], rows[4 * k + index][f]) for f in protocol.FIELDS)


def test_a_state_restores_on_any_number_of_processes(pack, tokens, make_shares):
  rows = pack.rows(tokens, 8, seed=0)
  whole = take(pipeline.train_iterator(rows, 8), 12)
  states = []
  for share in make_shares(8, 4, 'tiles'):
    iterator = pipeline.train_iterator(rows, 8, share)
    for _ in range(5):
      next(iterator)
    states.append(json.dumps(iterator.get_state()))
    iterator.close()
  assert len(set(states)) == 1
  shares = make_shares(8, 2, 'blocks')
  resumed = [pipeline.train_iterator(rows, 8, share) for share in shares]
  for iterator in resumed:
    iterator.set_state(json.loads(states[0]))
  for batch, split in zip(whole[5:], zip(*(take(i, 7) for i in resumed), strict=True), strict=True):
    assert same(join(split, shares), batch)


@pytest.mark.parametrize('threads', (1, 3))
def test_a_resume_equals_the_uninterrupted_run(pack, threads, tokens):
  def make():
    rows = pack.rows(tokens, 8, seed=0)
    return pipeline.train_iterator(rows, 2, threads=threads)

  unbroken = [pipeline.batch_hash(batch) for batch in take(make(), 40)]
  assert len(set(unbroken)) > 30
  for stop in (0, 1, 17):
    iterator = make()
    for _ in range(stop):
      next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    iterator.close()
    iterator = make()
    iterator.set_state(state)
    assert [pipeline.batch_hash(batch) for batch in take(iterator, 40 - stop)] == unbroken[stop:]


@pytest.mark.parametrize('count', (1, 2, 4))
@pytest.mark.parametrize('batch_size', (4, 64))
def test_evaluation_counts_every_token_once(pack, count, batch_size, make_shares):
  tokens = make_tokens(LENGTHS)
  rows = pack.evaluation_rows(tokens, 8)
  shares = make_shares(batch_size, count, 'tiles')
  parts = [list(pipeline.evaluation_batches(rows, batch_size, share)) for share in shares]
  assert {len(part) for part in parts} == {-(-len(rows) // batch_size)}
  assert all(b['inputs'].shape == (batch_size // count, 8) for part in parts for b in part)
  results = np.concatenate([b['targets'][b['segments'] > 0] for part in parts for b in part])
  reference = [*tokens.ids.tolist(), *[tokens.eos_id] * tokens.documents]
  assert sorted(results.tolist()) == sorted(reference)


def test_a_limited_evaluation_is_spread_over_the_split(pack):
  rows = pack.evaluation_rows(make_tokens(LENGTHS), 8)
  whole = list(pipeline.evaluation_batches(rows, 1))
  some = list(pipeline.evaluation_batches(rows, 1, limit=3))
  every = len(whole) // 3
  assert every > 1 and len(some) == 3
  for i, batch in enumerate(some):
    np.testing.assert_array_equal(batch['inputs'], whole[i * every]['inputs'])
  assert len(list(pipeline.evaluation_batches(rows, 1, limit=10**6))) == len(whole)


def test_a_hash_depends_on_values_and_order():
  rows = spec.build('concat', packing, protocol.Packing).rows(make_tokens(LENGTHS), 8, seed=0)
  [batch] = take(pipeline.train_iterator(rows, 4), 1)
  changed = {f: v.copy() for f, v in batch.items()}
  changed['segments'][2, 3] += 1
  swapped = {f: v[[1, 0, 2, 3]] for f, v in batch.items()}
  renamed = {**batch, 'inputs': batch['targets'], 'targets': batch['inputs']}
  assert len({pipeline.batch_hash(b) for b in (batch, changed, swapped, renamed)}) == 4


def test_from_text_files_to_batches(tmp_path, make_source, make_text, pack):
  book = make_text(0, 500)
  (tmp_path / 'book.txt').write_text(book, newline='')
  source = make_source(f"text('{tmp_path}/book.txt')")
  text = pipeline.open_text(source, Bytes(), tmp_path / 'cache')
  results = []
  for split in text.corpus.splits:
    tokens = text.tokens(split)
    rows = pack.evaluation_rows(tokens, 32)
    batches = pipeline.evaluation_batches(rows, 4)
    ids = np.concatenate([batch['targets'][batch['segments'] > 0] for batch in batches])
    assert text.tokenizer.token_bytes[ids].sum() == tokens.bytes == text.corpus.bytes[split]
    assert (ids == tokens.eos_id).sum() == text.corpus.documents[split]
    results.append(text.tokenizer.decode(ids))
  assert sorted(''.join(results)) == sorted(book)
  with pytest.raises(ValueError, match=r"book.txt'\) test is too short"):
    pack.rows(text.tokens('test'), 10**6, seed=0)
