"""Rows of synthetic tasks: their answers and labels."""

import numpy as np
import pytest

from tests.data.test_single_tasks import value
from tests.data.test_tasks import recall
from tfm import spec
from tfm.data import corpus as corpora
from tfm.data import packing, pipeline, tokenizers
from tfm.data.documents import INFINITE
from tfm.data.packing.protocol import Packing
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokens import AnsweredTexts


def open_task_data(make_source, source, tokenizer, path):
  return pipeline.open_text(make_source(source), spec.build(tokenizer, tokenizers, Tokenizer), path)


@pytest.mark.parametrize('split', ['train', 'validation'])
def test_rows_have_their_answers(make_source, tmp_path, monkeypatch, split):
  monkeypatch.setattr(corpora, 'TOKENIZER_SAMPLE', 200)
  data = open_task_data(
    make_source, 'mqar(length=16, pairs=2, vocabulary=12, held_out=30)', 'words', tmp_path
  )
  pack, tokens = spec.build('answered', packing, Packing), data.tokens(split)
  rows = pack.evaluation_rows(tokens, 20) if split == 'validation' else pack.rows(tokens, 20, seed=0)
  for i in range(20):
    row = rows[i]
    assert row['segments'].sum() == 18  # the first filler, 16 symbols, the end: each symbol is one token
    text = data.tokenizer.decode(row['targets'][:17])
    reported = [data.tokenizer.decode([token]) for token in row['targets'][row['answers'] > 0]]
    right, answers, _, _ = recall(text)
    assert right and reported == answers and row['answers'].dtype == np.int32
    np.testing.assert_array_equal(row['inputs'][1:18], row['targets'][:17])
  [batch] = pipeline.evaluation_batches(pack.evaluation_rows(data.tokens('validation'), 20), 32)
  assert not batch['answers'][30:].any() and batch['answers'][:30].any(1).all()


@pytest.mark.parametrize('tokenizer', ['bytes', 'char', 'words', 'sentencepiece(300)'])
def test_answers_are_all_tokens_with_a_byte_of_them(tokenizer):
  text = 'née Ünal said forty two, née'
  trained = spec.build(tokenizer, tokenizers, Tokenizer).train([text * 9, 'said forty two, né'])
  ids = np.append(trained.encode(text), trained.eos_id)
  raw, place = text.encode(), 0
  first, last = (
    raw.index('Ünal'.encode()) + 1,
    raw.index(b'y two'),
  )  # begins within a character and ends within a word
  for spans, expected in (
    (f'{first}:{last}', {*range(first, last)}),
    (f'0:2 {len(raw) - 1}:{len(raw) + 1}', {0, 1, len(raw) - 1, len(raw)}),
  ):
    reported = AnsweredTexts('made up', None, [spans], trained.token_bytes).answer_mask(0, ids)
    place = 0
    for token, counted in zip(ids, reported):
      size = max(len(trained.pieces[token]), 1)
      assert counted == bool({*range(place, place + size)} & expected), (trained.pieces[token], spans)
      place += size
  with pytest.raises(
    ValueError,
    match=rf'made up\[0\] has an answer at 3:{len(raw) + 2}, but the text has {len(raw) + 1} bytes',
  ):
    AnsweredTexts('made up', None, [f'3:{len(raw) + 2}'], trained.token_bytes).answer_mask(0, ids)


def test_long_texts_have_no_answers(make_source, tmp_path, caplog):
  data = open_task_data(make_source, 'copy(4, None, held_out=40)', 'bytes', tmp_path)
  pack = spec.build('answered', packing, Packing)
  rows = [pack.rows(data.tokens('train'), 8, seed=0)[i] for i in range(40)]
  empty = [row for row in rows if not row['segments'].any()]
  assert 0 < len(empty) < 40 and not any(row['answers'].any() for row in empty)
  assert 'more than a row of 8, and is skipped' in caplog.text
  assert 0 < len(pack.evaluation_rows(data.tokens('test'), 8)) < 40


def test_infinite_labelled_texts_are_packed(make_source, tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(corpora, 'TOKENIZER_SAMPLE', 100)
  data = open_task_data(make_source, 'listops(depth=4, least=20, most=40, held_out=20)', 'words', tmp_path)
  each, train = spec.build('each', packing, Packing), data.tokens('train')
  rows = each.rows(train, 40, seed=0)
  assert train.names == tuple('0123456789') and data.tokens('test').names == train.names
  for row in [*(rows[i] for i in range(20)), *each.evaluation_rows(data.tokens('test'), 40)]:
    n = row['segments'].sum()
    symbols = data.tokenizer.decode(row['inputs'][1:n]).split(' ')
    assert len(symbols) == n - 1 and row['inputs'][0] == data.tokenizer.eos_id and not row['inputs'][n:].any()
    assert row['classes'] == value(symbols)
  assert (
    rows[10**15 + 3]['inputs'].tobytes() != rows[3]['inputs'].tobytes() and 'truncated' not in caplog.text
  )
  assert each.rows(train, 20, seed=0)[0]['segments'].all()
  assert 'more than the 19 of a row, and is truncated' in caplog.text
  with pytest.raises(ValueError, match='is infinite; evaluate the validation'):
    each.evaluation_rows(train, 40)


def test_infinite_labels_need_class_names():
  sizes = dict(train=INFINITE, validation=1, test=1)
  for field in ('label', 'labels'):
    with pytest.raises(ValueError, match='made up is infinite, so its labels cannot be collected'):
      corpora.generate_corpus('made up', lambda split, number: ('a', 'a'), sizes, ('text', field))


@pytest.mark.slow
def test_infinite_word_labels(make_source, tmp_path):
  """Labels computed on reading are those of a finite source."""
  pack = spec.build('each', packing, Packing)
  for tokenizer in ('bytes', 'words'):
    endless, ended = (
      open_task_data(make_source, f'twins(pairs=4, keys=9{end})', tokenizer, tmp_path)
      for end in ('', ', examples=30')
    )
    read, stored = (data.tokens('train') for data in (endless, ended))
    for number in range(30):
      np.testing.assert_array_equal(read.labels(number), stored.labels(number))
      labels = endless.corpus.splits['train']['labels'][number].split(' ')
      assert [read.names[i] for i in read.labels(number) if i >= 0] == labels
    row = pack.rows(read, 64, seed=0)[7]
    size = row['segments'].sum()
    words = endless.tokenizer.decode(row['inputs'][1:size]).split(' ')
    first = np.flatnonzero(row['classes'] >= 0)
    assert len(first) == len(words) == 8 and row['classes'].max() < 10
    for word, at in zip(words, first):  # a class stands where its word begins
      assert endless.tokenizer.decode(row['inputs'][at : at + 9]).strip().startswith(word[:2])
