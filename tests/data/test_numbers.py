"""Numbers and dates: right in both languages, splits apart, and the same pairs for the same seed."""

import re

import pytest


@pytest.fixture(scope='module')
def corpus(make_source, tmp_path_factory):
  return make_source('numbers(pairs=400)').prepare(tmp_path_factory.mktemp('numbers'))


def pairs(corpus, split):
  return list(zip(*(corpus.splits[split][side] for side in ('source', 'target'))))


def test_sizes_and_languages(corpus):
  assert dict(corpus.documents) == dict(train=400, validation=20, test=20)
  found = {*pairs(corpus, 'train')}
  dates = {pair for pair in found if re.search(r', \d+$', pair[0])}
  assert 60 < len(dates) < 180
  for source, target in dates:
    day, year = re.fullmatch(r'\w+day, \w+ (\d+), (19\d\d)', source).groups()
    assert re.fullmatch(rf'\w+, {day}\. \w+ {year}', target), (source, target)
  assert all(re.fullmatch('[a-zäöüß]+', target) and re.fullmatch('[a-z, -]+', source) for source, target in found - dates)


def test_known_ones():
  import datetime
  from tfm.data.sources.numbers import spelt
  assert [spelt(205, language) for language in ('en', 'de')] == ['two hundred and five', 'zweihundertfünf']
  day = datetime.date(1971, 5, 1)
  assert [spelt(day, language) for language in ('en', 'de')] == ['Saturday, May 1, 1971', 'Samstag, 1. Mai 1971']


def test_splits_are_apart(corpus):
  train, validation, test = ({source for source, _ in pairs(corpus, split)} for split in corpus.splits)
  assert not train & validation and not (train | validation) & test
  # More digits, or the next century.
  assert all(re.search(r'million|hundred|thousand|, 20\d\d$', source) for source in test)


def test_the_seed_decides(make_source, tmp_path, corpus):
  same, other = (make_source(f'numbers(pairs=400, seed={seed})').prepare(tmp_path) for seed in (0, 1))
  assert same.hash == corpus.hash != other.hash


@pytest.mark.parametrize('spec, sentence', [
  ('numbers("en", "xx")', "'xx' is no language of num2words and Babel; known: .*de.*en"),
  ('numbers(pairs=3)', 'pairs=3 are too few'),
  ('numbers(digits=7)', 'digits=7 and longest=7 leave no longer numbers'),
])
def test_refusals(make_source, spec, sentence):
  with pytest.raises(ValueError, match=sentence):
    make_source(spec)
