"""Mixtures: rows, corpora, tokenizers and classes of several sources."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from tfm import spec
from tfm.data import packing, pipeline, sources
from tfm.data.documents import INFINITE
from tfm.data.mixture import MixedDocuments, split_mixture
from tfm.data.packing.protocol import FIELDS, Packing
from tfm.data.sources.protocol import Source
from tfm.data.tokenizers.bytes import Bytes
from tfm.data.tokenizers.char import Char


@pytest.fixture
def make_mixture(make_source):
  """A function (weights, **specs) -> the source `mix(…)` of these sources."""

  def make(weights, **specs):
    named = {name: make_source(text) for name, text in specs.items()}
    return spec.build(f'mix({weights})', sources, Source, sources=named)

  return make


@pytest.fixture
def files(tmp_path, make_text):
  """Spec strings of a large and of a small source."""
  (tmp_path / 'large.txt').write_text(make_text(1, 2000), newline='')
  (tmp_path / 'small.txt').write_text(make_text(2, 300), newline='')
  return dict(large=f"text('{tmp_path}/large.txt')", small=f"text('{tmp_path}/small.txt')")


def pack(text):
  return spec.build(text, packing, Packing)


def mixed(**parts):
  """Documents of a mixture; each part is (weight, tokens)."""
  weights = {name: Fraction(weight) for name, (weight, _) in parts.items()}
  return MixedDocuments('mixed', weights, {name: tokens for name, (_, tokens) in parts.items()})


def rows_of(rows, count, part):
  """The first rows of a part, found by its tokens, which no other part has."""
  found = (rows[i]['targets'] for i in range(1000))
  return [*itertools.islice((row for row in found if set(row.tolist()) <= part), count)]


@pytest.fixture
def two(make_tokens):
  """(large, small) tokens without a token in common, and the set of each."""
  large, small = make_tokens([40, 17, 80, 33]), make_tokens([7, 23, 10])
  small.ids[:] += 1000
  return large, small, {0, *large.ids.tolist(), large.eos_id}, {0, *small.ids.tolist(), small.eos_id}


@pytest.mark.parametrize('text', ['concat', 'first_fit', 'padded'])
def test_a_part_has_the_same_rows_whatever_it_is_mixed_with(text, two):
  large, small, _, own = two
  alone = pack(text).rows(mixed(small=('1', small)), 40, seed=3)
  expected = rows_of(alone, 20, own)
  for weight in ('0.2', '0.5'):
    rows = pack(text).rows(mixed(small=(weight, small), large=(1 - Fraction(weight), large)), 40, seed=3)
    np.testing.assert_array_equal(rows_of(rows, 20, own), expected)
  renamed = pack(text).rows(mixed(little=('1', small)), 40, seed=3)
  other = pack(text).rows(mixed(small=('1', small)), 40, seed=4)
  plain = pack(text).rows(small, 40, seed=3)
  for rows in (renamed, other, plain):
    # `first_fit` puts all three documents into one row.
    assert text == 'first_fit' or not np.array_equal(rows_of(rows, 20, own), expected)


def test_a_small_source_is_shuffled_anew_while_the_large_one_goes_on(make_tokens):
  large, small = make_tokens([5] * 60), make_tokens([7, 6, 5, 4])
  small.ids[:] += 1000
  rows = pack('padded').rows(mixed(large=('0.6', large), small=('0.4', small)), 10, seed=0)
  first_tokens = [int(rows[i]['targets'][0]) for i in range(100)]
  large_rows, small_rows = ([t for t in first_tokens if (t > 1000) == is_small] for is_small in (False, True))
  assert len(large_rows) == 60 and len(set(large_rows)) == 60  # one epoch
  epochs = [tuple(small_rows[i : i + 4]) for i in range(0, 40, 4)]
  assert len({frozenset(epoch) for epoch in epochs}) == 1 and len(set(epochs[0])) == 4
  assert len(set(epochs)) > 3  # ten epochs in several orders


def test_tokens_of_full_rows_have_the_weights(two):
  large, small, _, own = two
  rows = pack('concat').rows(mixed(large=('0.85', large), small=('0.15', small)), 16, seed=0)
  targets = np.concatenate([rows[i]['targets'] for i in range(200)])
  counted = np.isin(targets, [*own - {small.eos_id}])
  eos_share = small.documents / small.targets
  assert abs(counted.mean() - 0.15 * (1 - eos_share)) < 0.005


def test_the_corpus_covers_all_parts(files, make_mixture, tmp_path, make_text):
  def prepare(weights, **changed):
    return make_mixture(weights, **files | changed).prepare(tmp_path / 'cache')

  corpus = prepare('large=0.7, small=0.3')
  assert corpus.name == 'mix(large=0.7, small=0.3)' and list(corpus.parts) == ['large', 'small']
  assert prepare('small=0.3, large=0.7').hash == corpus.hash
  assert prepare('small=0.4, large=0.6').hash != corpus.hash
  for name in files:
    (tmp_path / 'changed.txt').write_text(make_text(3, 300), newline='')
    assert prepare('large=0.7, small=0.3', **{name: f"text('{tmp_path}/changed.txt')"}).hash != corpus.hash
  for split in corpus.splits:
    texts = [[*part.splits[split]['text']] for part in corpus.parts.values()]
    column = corpus.splits[split]['text']
    assert [*column] == texts[0] + texts[1] == [column[i] for i in range(len(column))]
    assert corpus.documents[split] == len(column)
    assert corpus.bytes[split] == sum(part.bytes[split] for part in corpus.parts.values())
    with pytest.raises(IndexError):
      column[len(column)]
  assert str(corpus).count('content hash') == 3


def test_a_tokenizer_is_trained_by_the_weights(files, make_mixture, tmp_path):
  def training_texts(weights):
    corpus = make_mixture(weights, **files).prepare(tmp_path / 'cache')
    small = {*corpus.parts['small'].splits['train']['text']}
    texts = [*corpus.training_texts(('text',))]
    total = sum(len(text.encode()) for text in texts)
    return texts, total, sum(len(text.encode()) for text in texts if text in small) / total, corpus

  for weight in (0.9, 0.3, 0.02):
    texts, total, share, corpus = training_texts(f'small={weight}, large={round(1 - weight, 2)}')
    longest = max(len(text.encode()) for text in texts)
    assert 0 <= total - corpus.bytes['train'] < longest  # as much text as there is
    assert abs(share - weight) < 2 * longest / total
    # At every place, and so in the sample that some tokenizers read.
    sizes = np.cumsum([len(text.encode()) for text in texts])
    small = {*corpus.parts['small'].splits['train']['text']}
    of_small = np.cumsum([len(text.encode()) * (text in small) for text in texts])
    assert (abs(of_small - weight * sizes) < 2 * longest).all()


def test_all_sources_have_one_tokenizer(files, make_mixture, tmp_path):
  (tmp_path / 'greek.txt').write_text(''.join(f'αβγ {i}\n\n' for i in range(3000)))
  mixture = make_mixture('small=0.5, greek=0.5', **files, greek=f"text('{tmp_path}/greek.txt')")
  data = pipeline.open_text(mixture, Char(), tmp_path / 'cache')
  weights, parts = split_mixture(data.tokens('train'))
  assert weights == dict(small=Fraction(1, 2), greek=Fraction(1, 2))
  assert 'α' in data.tokenizer.alphabet and 'c' in data.tokenizer.alphabet
  for name, tokens in parts.items():
    assert data.tokenizer.decode(tokens.document(0)) == data.corpus.parts[name].splits['train']['text'][0]
  # A text of one source is stored under its own hash: it is not encoded again for other weights.
  folders = {path.name for path in (tmp_path / 'cache' / 'tokens').iterdir()}
  assert len(folders) == 2


def test_one_source_of_a_mixture(files, make_mixture, tmp_path):
  data = pipeline.open_text(make_mixture('large=0.7, small=0.3', **files), Bytes(), tmp_path / 'cache')
  [(_, tokens)] = split_mixture(data.tokens('test/small'))[1].items()
  np.testing.assert_array_equal(tokens.ids, data.tokens('test').parts['small'].ids)
  with pytest.raises(ValueError, match=r"test/smal: mix\(.*\) mixes no 'smal'; .* did you mean 'small'\?"):
    data.tokens('test/smal')
  alone = pipeline.open_text(make_mixture('large=1.0', **files).sources[0], Bytes(), tmp_path / 'cache')
  with pytest.raises(ValueError, match="mixes no 'small'; known: none"):
    alone.tokens('test/small')
  with pytest.raises(ValueError, match="has no split 'tset'"):
    data.tokens('tset')


def test_a_mixture_has_the_splits_that_all_sources_have(files, make_mixture, make_text, tmp_path):
  (tmp_path / 'tail.txt').write_text(make_text(4, 900), newline='')
  for name in ('a', 'tail'):  # the first of the sources, and the last
    without_test = {name: f"text('{tmp_path}/tail.txt', tail=0.2)"}
    mixture = make_mixture(f'large=0.5, {name}=0.5', **files | without_test)
    data = pipeline.open_text(mixture, Bytes(), tmp_path / 'cache')
    assert list(data.corpus.splits) == list(data.corpus.bytes) == ['train', 'validation']
    assert list(data.tokens('validation').parts) == sorted(['large', name])
    assert data.tokens('test/large').documents
    with pytest.raises(ValueError, match="tail=0.2.* has no split 'test'"):
      data.tokens('test')


def test_generated_documents_are_mixed_with_others(make_mixture, tmp_path):
  tasks = make_mixture(
    'copy=0.75, few=0.25', copy='copy(held_out=8, length=30)', few='sort(examples=20, held_out=8)'
  )
  assert tasks.is_infinite and tasks.fields == ('text', 'answers')
  data = pipeline.open_text(tasks, Bytes(), tmp_path / 'cache')
  assert data.corpus.documents == dict(train=INFINITE, validation=16, test=16)
  assert list(data.corpus.bytes) == ['validation', 'test'] and 'train infinite' in str(data)
  rows = pack('answered').rows(data.tokens('train'), 64, seed=0)
  repeated = [rows[i]['targets'].tobytes() for i in range(160)]
  assert 130 < len(set(repeated)) <= 120 + 20  # two epochs of `few`; some short texts are equal
  assert sum(1 for _ in data.corpus.training_texts(('text',))) > 20


def test_classes_must_be_the_same(make_mixture, tmp_path):
  for name, labels in dict(one='ab', same='ab', other='ac').items():
    lines = [f'{label}\ttext {i} of {name}\n' for i in range(300) for label in labels]
    (tmp_path / f'{name}.tsv').write_text(''.join(lines))
  specs = {name: f"labelled('{tmp_path}/{name}.tsv')" for name in ('one', 'same', 'other')}

  def names(mixture):
    return (
      pipeline.open_text(make_mixture(mixture, **specs), Bytes(), tmp_path / 'cache').tokens('train').names
    )

  assert names('one=0.5, same=0.5') == ('a', 'b')
  with pytest.raises(ValueError, match='one has the classes a, b and other has a, c; .* the same classes'):
    names('one=0.5, other=0.5')


def test_rows_of_a_mixture_have_the_fields_of_its_parts(two):
  large, small, *_ = two
  row = pack('concat').rows(mixed(large=('0.5', large), small=('0.5', small)), 16, seed=0)[0]
  assert set(row) == set(FIELDS) and all(x.shape == (16,) and x.dtype == np.int32 for x in row.values())
  with pytest.raises(ValueError, match='made up is too short: 43 tokens do not fill one row of length=100'):
    pack('concat').rows(mixed(large=('0.5', large), small=('0.5', small)), 100, seed=0)


def test_an_empty_source_is_one_sentence(files, make_mixture, tmp_path):
  (tmp_path / 'empty.txt').write_text('')
  with pytest.raises(ValueError, match=r"text\('.*/empty.txt'\) is empty"):
    make_mixture('empty=0.5, small=0.5', **files, empty=f"text('{tmp_path}/empty.txt')").prepare(
      tmp_path / 'c'
    )
  with pytest.raises(ValueError, match='matches no file'):
    make_mixture('none=0.5, small=0.5', **files, none=f"text('{tmp_path}/none.txt')").prepare(tmp_path / 'c')
