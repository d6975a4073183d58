"""Labelled texts and tagged words: nothing lost, classes numbered once, rows of one document each."""

import collections
import csv
import gzip
import io
import logging

import numpy as np
import pytest
import tensorflow_datasets

from tfm import spec
from tfm.data import packing, pipeline
from tfm.data.packing import protocol
from tfm.data.tokenizers.bytes import Bytes
from tfm.data.tokenizers.published import Published
from tfm.data.tokenizers.sentencepiece import SentencePiece


SPLITS = ('train', 'validation', 'test')
REVIEWS = [(f'{"good" if i % 3 else "bad"}', f'review\t{i} née') for i in range(400)]
SENTENCES = [([f'Wörd{i}', 'is', 'in', f'Town{i % 7}'], ['O', 'O', 'O', 'B-LOC']) for i in range(300)]
EACH = spec.build('each', packing, protocol.Packing)


def lines(examples):
  return ''.join(f'{label}\t{text}\n' for label, text in examples)


def conll(sentences):
  return '-DOCSTART- -X- O\n\n' + '\n'.join(
    ''.join(f'{word} X {tag}\n' for word, tag in zip(*sentence)) for sentence in sentences
  )


def examples(corpus, split):
  return collections.Counter(zip(*(corpus.splits[split][field] for field in corpus.fields)))


def open_text_data(source, tokenizer, cache_dir):
  return pipeline.open_text(source, tokenizer, cache_dir)


@pytest.fixture(scope='module')
def reviews(tmp_path_factory, make_source):
  folder = tmp_path_factory.mktemp('reviews')
  (folder / 'a.tsv').write_text(lines(REVIEWS[:250]))
  (folder / 'b.tsv.gz').write_bytes(gzip.compress((lines(REVIEWS[250:]) + '\n\n').encode()))
  return open_text_data(make_source(f"labelled('{folder}/*.tsv*')"), Bytes(), folder / 'cache')


def test_a_line_is_a_label_and_a_text(reviews):
  results = sum((examples(reviews.corpus, split) for split in SPLITS), collections.Counter())
  assert results == collections.Counter((text, label) for label, text in REVIEWS)
  assert reviews.corpus.fields == ('text', 'label') and all(
    reviews.corpus.documents[split] for split in SPLITS
  )


def test_classes_are_numbered_in_the_order_of_their_names(reviews):
  for split in SPLITS:
    tokens = reviews.tokens(split)
    assert tokens.names == ('bad', 'good')
    for d, label in enumerate(reviews.corpus.splits[split]['label']):
      assert tokens.names[tokens.classes[d]] == label


def test_files_of_each_split_and_a_label_missing_from_training(tmp_path, make_source):
  for name, label in (('train', 'a'), ('dev', 'a'), ('test', 'b')):
    (tmp_path / f'{name}.tsv').write_text(lines([(label, f'{name} {i}') for i in range(9)]))
  text = open_text_data(
    make_source(f"labelled('{tmp_path}/{{split}}.tsv', splits=('train', 'dev', 'test'))"), Bytes(), tmp_path
  )
  assert set(text.corpus.splits['validation']['text']) == {f'dev {i}' for i in range(9)}
  assert text.tokens('validation').names == ('a',)
  with pytest.raises(
    ValueError, match=r"test has the label 'b', which the training split does not have \(a\); remove"
  ):
    text.tokens('test')


@pytest.mark.parametrize(
  'source, written, sentence',
  [
    ('labelled', 'good\tfine\nno label\n', r'x:2 is not `label TAB text`; it begins .no label'),
    ('labelled', '\tfine\n', r'x:1 is not `label TAB text`'),
    ('tagged', 'one O\ntwo\n', r'x:2 has one column; a line must be a word and its tag'),
  ],
)
def test_invalid_lines_are_rejected(tmp_path, make_source, source, written, sentence):
  (tmp_path / 'x').write_text(written)
  with pytest.raises(ValueError, match=sentence):
    make_source(f"{source}('{tmp_path}/x')").prepare(tmp_path / 'cache')
  with pytest.raises(ValueError, match='matches no file: .*none.* does not exist'):
    make_source(f"{source}('{tmp_path}/none')").prepare(tmp_path / 'cache')


def test_a_table_has_its_texts_and_classes_in_columns(tmp_path, make_source):
  rows = [(f'Line "{i}",\nand\tmore', ' good ' if i % 3 else 'bad', str(i)) for i in range(800)]
  for name, delimiter, kind in (('a.csv.gz', ',', ''), ('b.tab', '\t', 'string\tdiscrete\tmeta\n\n')):
    with io.StringIO(newline='') as file:
      csv.writer(file, delimiter=delimiter).writerows(
        [('text', 'label', 'number'), *(row for row in rows if (name[0] == 'a') == (int(row[2]) % 2 == 0))]
      )
      written = file.getvalue().replace('\r\n', '\n', 1).replace('number\n', f'number\n{kind}')
    data = written.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith('.gz') else data)
  parts = [
    make_source(f"table('{tmp_path}/{pattern}', text='text', label='label', skip={skip})").prepare(
      tmp_path / 'cache'
    )
    for pattern, skip in (('a*', 0), ('b*', 2))
  ]
  results = sum((examples(corpus, split) for corpus in parts for split in SPLITS), collections.Counter())
  assert results == collections.Counter((text, label.strip()) for text, label, _ in rows)


@pytest.mark.parametrize(
  'name, written, more, sentence',
  [
    (
      'x.csv',
      'text,label\nfine,good\n',
      ", 'review', 'label'",
      r"needs one column 'review', and .*x.csv has the columns text, label",
    ),
    (
      'x.csv',
      'text,label\nfine,good\nfine\n',
      ", 'text', 'label'",
      r"x.csv:3 has 1 columns of 2, or no label; it begins 'fine'",
    ),
    (
      'x.csv',
      'text,label\nfine, \n',
      ", 'text', 'label'",
      r"x.csv:2 has 2 columns of 2, or no label; it begins 'fine | '",
    ),
    ('x.csv', 'text,label\n"fine"er,good\n', ", 'text', 'label'", r'x.csv:2 is not a valid row: '),
    (
      'x.txt',
      'text,label\n',
      ", 'text', 'label'",
      r'reads .csv, .tsv, .tab files, and .*x.txt has none of these suffixes; rename it',
    ),
    ('x.csv', 'text,label\n', ", 'text', 'label', skip=-1", r'skip=-1 must be at least 0'),
  ],
)
def test_invalid_tables_are_rejected(tmp_path, make_source, name, written, more, sentence):
  (tmp_path / name).write_text(written)
  with pytest.raises(ValueError, match=sentence):
    make_source(f"table('{tmp_path}/{name}'{more})").prepare(tmp_path / 'cache')


def test_a_row_holds_one_document(reviews, caplog):
  tokens = reviews.tokens('validation')
  with caplog.at_level(logging.WARNING):
    rows = EACH.evaluation_rows(tokens, 64)
  assert not caplog.text and len(rows) == tokens.documents
  for d, row in enumerate(rows):
    n = len(tokens.text.document(d))
    np.testing.assert_array_equal(row['inputs'][:n], np.roll(tokens.text.document(d), 1))
    np.testing.assert_array_equal(row['positions'][:n], np.arange(n))
    np.testing.assert_array_equal(row['segments'], np.arange(64) < n)
    assert row['classes'] == tokens.classes[d] and all(x.dtype == np.int32 for x in row.values())
    assert not any(row[field][n:].any() for field in ('inputs', 'positions'))


def test_long_texts_are_truncated_with_a_warning(reviews, caplog):
  tokens = reviews.tokens('train')
  longest = tokens.text.lengths.max()
  with caplog.at_level(logging.WARNING):
    rows = EACH.rows(tokens, int(longest), seed=0)
  count = (tokens.text.lengths == longest).sum()
  assert f'{count} of {tokens.documents} texts are longer than {longest - 1} tokens' in caplog.text
  assert {int(rows[i]['segments'].sum()) for i in range(tokens.documents)} >= {longest}


def test_every_epoch_reads_each_document_once_in_its_own_order(reviews):
  tokens = reviews.tokens('train')
  rows, again = (EACH.rows(tokens, 64, seed=3) for _ in range(2))
  orders = [
    [rows[i]['inputs'].tobytes() for i in range(e * tokens.documents, (e + 1) * tokens.documents)]
    for e in (0, 1)
  ]
  assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]
  assert again[tokens.documents + 5]['inputs'].tobytes() == orders[1][5]
  other = EACH.rows(tokens, 64, seed=4)
  assert [other[i]['inputs'].tobytes() for i in range(9)] != orders[0][:9]


def test_batches_resume_by_their_index(reviews):
  def batches():
    return pipeline.train_iterator(EACH.rows(reviews.tokens('train'), 64, seed=0), 8)

  whole = batches()
  reference = [pipeline.batch_hash(next(whole)) for _ in range(5)]
  whole.close()
  resumed = batches()
  resumed.set_state({'next_index': 3})
  assert [pipeline.batch_hash(next(resumed)) for _ in range(2)] == reference[3:]
  resumed.close()


def test_padding_has_no_class(reviews):
  tokens = reviews.tokens('validation')
  size = tokens.documents + 3
  [batch] = pipeline.evaluation_batches(EACH.evaluation_rows(tokens, 64), size)
  assert (batch['classes'] >= 0).sum() == tokens.documents and (batch['classes'][-3:] == -1).all()
  assert not batch['segments'][-3:].any()


@pytest.mark.parametrize('tokenizer', [Bytes(), SentencePiece(size=300)], ids=['bytes', 'sentencepiece'])
def test_a_word_has_its_class_at_its_first_token(tmp_path, make_source, tokenizer):
  (tmp_path / 'a.conll').write_text(conll(SENTENCES))
  text = open_text_data(make_source(f"tagged('{tmp_path}/a.conll')"), tokenizer, tmp_path)
  results = sum((examples(text.corpus, split) for split in SPLITS), collections.Counter())
  assert results == collections.Counter((' '.join(words), ' '.join(tags)) for words, tags in SENTENCES)
  tokens = text.tokens('validation')
  assert tokens.names == ('B-LOC', 'O')
  for row, labels in zip(EACH.evaluation_rows(tokens, 64), text.corpus.splits['validation']['labels']):
    starts, n = np.flatnonzero(row['classes'] >= 0), int(row['segments'].sum())
    assert [tokens.names[i] for i in row['classes'][starts]] == labels.split(' ')
    pieces = [*starts, n]
    words = [text.tokenizer.decode(row['inputs'][a:b]).strip() for a, b in zip(pieces, pieces[1:])]
    assert (
      len(words) == 4
      and words[0].startswith('Wörd')
      and words[1:3] == ['is', 'in']
      and words[3].startswith('Town')
    )
  # Of a sentence that is cut, the words that are left have their classes.
  cut = EACH.evaluation_rows(tokens, 6)[0]
  assert cut['classes'].shape == (6,) and (cut['classes'] >= 0).any()


class Judged(tensorflow_datasets.core.GeneratorBasedBuilder):
  """Texts with the name of a class, and a number."""

  VERSION = tensorflow_datasets.core.Version('1.0.0')

  def _info(self):
    features = tensorflow_datasets.features
    return tensorflow_datasets.core.DatasetInfo(
      builder=self,
      features=features.FeaturesDict(
        dict(
          text=features.Text(),
          label=features.ClassLabel(names=['neg', 'pos']),
          stars=features.Scalar(np.int64),
        )
      ),
    )

  def _split_generators(self, dl_manager):
    return {
      split: self._generate_examples(split, n) for split, n in dict(train=40, validation=6, test=6).items()
    }

  def _generate_examples(self, split, count):
    for i in range(count):
      yield i, dict(text=f'{split} {i}', label=-1 if split == 'test' else i % 2, stars=i % 3)


def test_a_tfds_set_names_its_classes(tmp_path, make_source):
  def corpus(words):
    return make_source(f"tfds('judged', {words}, data_dir='{tmp_path}')").prepare(tmp_path / 'cache')

  named = corpus("label='label'")
  assert examples(named, 'validation') == collections.Counter(
    (f'validation {i}', ('neg', 'pos')[i % 2]) for i in range(6)
  )
  assert set(named.splits['test']['label']) == {'-1'}
  assert set(corpus("label='stars'").splits['train']['label']) == {'0', '1', '2'}
  with pytest.raises(ValueError, match="has no label under 'mood'; it has .*'stars'"):
    corpus("label='mood'")
  with pytest.raises(ValueError, match="target='text' defines pairs, which have no label='label'"):
    corpus("target='text', label='label'")


def test_image_augmentation_of_texts_is_rejected(reviews):
  with pytest.raises(
    ValueError, match=r'flip=True and crop=0 are for images, and labelled.* train is text; leave them out'
  ):
    spec.build('each(flip=True)', packing, protocol.Packing).rows(reviews.tokens('train'), 64, seed=0)


def test_a_published_tokenizer_adds_its_own_first_token(tmp_path, make_source):
  """[CLS] text [SEP], with a class at the first token of each word."""
  (tmp_path / 'vocab.txt').write_text(
    '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', 'now', 'is', 'bet', '##ter'])
  )
  for split in SPLITS:
    (tmp_path / f'{split}.tsv').write_text('a\tnow is\nb\tbetter\n')
  text = open_text_data(
    make_source(f"labelled('{tmp_path}/{{split}}.tsv')"), Published(str(tmp_path)), tmp_path
  )
  tokens = text.tokens('train')
  for row in (EACH.evaluation_rows(tokens, 8)[i] for i in range(tokens.documents)):
    assert (
      row['inputs'].tolist() in ([2, 4, 5, 3, 0, 0, 0, 0], [2, 6, 7, 3, 0, 0, 0, 0])
      and row['segments'].sum() == 4
    )
  assert EACH.evaluation_rows(tokens, 3)[0]['inputs'][0] == 2
  (tmp_path / 'a.conll').write_text(conll(SENTENCES))
  tagged = open_text_data(make_source(f"tagged('{tmp_path}/a.conll')"), Published(str(tmp_path)), tmp_path)
  with pytest.raises(ValueError, match='normalizes texts, so the words of'):
    tagged.tokens('train')
