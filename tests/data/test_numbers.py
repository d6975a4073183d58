"""Numbers and dates: right in both languages, disjoint splits, the same pairs for the same seed, infinitely
many.
"""

import logging
import re

import numpy as np
import pytest

from tfm import spec
from tfm.data import corpus as corpora
from tfm.data import packing, pipeline, tokenizers
from tfm.data.packing.protocol import Packing
from tfm.data.tokenizers.protocol import Tokenizer


@pytest.fixture(scope='module')
def corpus(make_source, tmp_path_factory):
  return make_source('numbers(pairs=400)').prepare(tmp_path_factory.mktemp('numbers'))


def pairs(corpus, split):
  return list(zip(*(corpus.splits[split][side] for side in ('source', 'target'))))


def test_sizes_and_languages(corpus):
  assert dict(corpus.documents) == dict(train=400, validation=20, test=20)
  results = {*pairs(corpus, 'train')}
  dates = {pair for pair in results if re.search(r', \d+$', pair[0])}
  assert 60 < len(dates) < 180
  for source, target in dates:
    day, year = re.fullmatch(r'\w+day, \w+ (\d+), (19\d\d)', source).groups()
    assert re.fullmatch(rf'\w+, {day}\. \w+ {year}', target), (source, target)
  assert all(
    re.fullmatch('[a-zäöüß]+', target) and re.fullmatch('[a-z, -]+', source)
    for source, target in results - dates
  )


def test_known_pairs():
  import datetime

  from tfm.data.sources.numbers import spell_out

  assert [spell_out(205, language) for language in ('en', 'de')] == [
    'two hundred and five',
    'zweihundertfünf',
  ]
  day = datetime.date(1971, 5, 1)
  assert [spell_out(day, language) for language in ('en', 'de')] == [
    'Saturday, May 1, 1971',
    'Samstag, 1. Mai 1971',
  ]


def test_splits_are_disjoint(corpus):
  train, validation, test = ({source for source, _ in pairs(corpus, split)} for split in corpus.splits)
  assert not train & validation and not (train | validation) & test
  # More digits, or the next century.
  assert all(re.search(r'million|hundred|thousand|, 20\d\d$', source) for source in test)


def test_the_seed_determines_the_pairs(make_source, tmp_path, corpus):
  same, other = (make_source(f'numbers(pairs=400, seed={seed})').prepare(tmp_path) for seed in (0, 1))
  assert same.hash == corpus.hash != other.hash


@pytest.mark.parametrize(
  'spec, sentence',
  [
    ('numbers("en", "xx")', "'xx' is not a language of num2words and Babel; known: .*de.*en"),
    ('numbers(pairs=3)', 'pairs=3 must be at least 20'),
    ('numbers(digits=7)', 'digits=7 and longest=7 leave no longer numbers'),
  ],
)
def test_invalid_fields_are_rejected(make_source, spec, sentence):
  with pytest.raises(ValueError, match=sentence):
    make_source(spec)


@pytest.fixture(scope='module')
def infinite_data(make_source, tmp_path_factory):
  """Infinitely many pairs, and their packing."""
  data = pipeline.open_data(
    make_source('numbers'), spec.build('bytes', tokenizers, Tokenizer), tmp_path_factory.mktemp('numbers')
  )
  return data, spec.build('padded', packing, Packing)


@pytest.mark.slow
def test_pairs_are_infinite(infinite_data):
  data, pack = infinite_data
  rows = pack.rows(data.tokens('train'), 64, seed=0)
  observed = {tuple(rows[i]['source']) for start in (0, 10**15) for i in range(start, start + 2000)}
  assert len(observed) > 2500  # numbers of few digits come again
  assert 'train infinite; validation' in str(data)
  row, text = rows[7], data.tokenizer.decode
  source = text(row['source'][row['source_segments'] > 0][:-1])
  assert re.fullmatch('[A-Za-z0-9, -]+', source) and row['source_segments'].sum() == len(source) + 1
  np.testing.assert_array_equal(
    row['inputs'][1:][row['segments'][1:] > 0], row['targets'][:-1][row['segments'][1:] > 0]
  )


def test_the_seed_of_the_run_determines_the_first_pair(infinite_data):
  data, pack = infinite_data
  first, same, other = (pack.rows(data.tokens('train'), 64, seed=seed) for seed in (0, 0, 1))

  def read(rows):
    return [rows[i]['targets'].tolist() for i in range(20)]

  assert read(first) == read(same) != read(other)


def test_held_out_pairs_are_disjoint_and_finite(infinite_data):
  data, pack = infinite_data
  held_out = {*data.corpus.splits['validation']['source']} | {*data.corpus.splits['test']['source']}
  texts = data.corpus.splits['train']['source']
  assert not held_out & {texts[i] for i in range(3000)}
  assert data.corpus.documents['validation'] == data.corpus.documents['test'] == 1000
  assert len(pack.evaluation_rows(data.tokens('test'), 96)) == 1000
  with pytest.raises(ValueError, match='numbers train is infinite; evaluate the validation'):
    pack.evaluation_rows(data.tokens('train'), 96)


def test_the_row_of_a_long_pair_is_empty(infinite_data, caplog):
  data, pack = infinite_data
  rows = pack.rows(data.tokens('train'), 20, seed=0)
  with caplog.at_level(logging.WARNING):
    results = [rows[i] for i in range(30)]
  empty = [row for row in results if not row['segments'].any()]
  assert 0 < len(empty) < 30 and caplog.text.count('more than a row of 20, and is skipped') == len(empty)
  assert not any(x.any() for row in empty for x in row.values())


def test_a_tokenizer_is_trained_on_the_first_documents(make_source, tmp_path, monkeypatch):
  monkeypatch.setattr(corpora, 'TOKENIZER_SAMPLE', 200)
  data = pipeline.open_data(
    make_source('numbers'), spec.build('sentencepiece(400)', tokenizers, Tokenizer), tmp_path
  )
  assert data.tokenizer.vocab_size == 400


def test_other_packings_reject_infinite_sources(infinite_data):
  for other in ('buckets', 'first_fit'):
    with pytest.raises(
      ValueError, match="numbers train is infinite, and .* plans a whole epoch; use packing='padded'"
    ):
      spec.build(other, packing, Packing).rows(infinite_data[0].tokens('train'), 64, seed=0)
