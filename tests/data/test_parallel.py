"""Aligned files: nothing is lost, skipped lines are reported with their numbers, and errors name the file."""

import collections
import gzip

import pytest
import tensorflow_datasets


PAIRS = [(f'source {i} née', f'Ziel {i} Ünal') for i in range(400)]


def write(folder, name, texts, end='\n', zipped=False):
  data = ''.join(text + end for text in texts).encode()
  (folder / name).write_bytes(gzip.compress(data, mtime=0) if zipped else data)


def pairs(corpus, split):
  return list(zip(*(corpus.splits[split][side] for side in ('source', 'target'))))


def all_pairs(corpus):
  return collections.Counter(pair for split in corpus.splits for pair in pairs(corpus, split))


@pytest.mark.parametrize('end, zipped', [('\n', False), ('\r\n', True)])
def test_lines_of_two_files_are_pairs(tmp_path, make_source, end, zipped):
  for name, texts in zip(('a.en', 'a.de'), zip(*PAIRS)):
    write(tmp_path, name + '.gz' * zipped, texts, end, zipped)
  corpus = make_source(
    f'parallel("{tmp_path}/a.en{".gz" * zipped}", "{tmp_path}/a.de{".gz" * zipped}")'
  ).prepare(tmp_path)
  assert all_pairs(corpus) == collections.Counter(PAIRS) and corpus.fields == ('source', 'target')
  assert all(corpus.documents[split] for split in ('train', 'validation', 'test'))


def test_columns_of_one_file_are_pairs(tmp_path, make_source):
  write(tmp_path, 'a.tsv', map('\t'.join, PAIRS))
  corpus = make_source(f'parallel("{tmp_path}/a.tsv", lowercase=True)').prepare(tmp_path)
  assert all_pairs(corpus) == collections.Counter((a.lower(), b.lower()) for a, b in PAIRS)


def test_moses_tokens(tmp_path, make_source):
  """Punctuation is normalized by the language of the side, and is a token of its own, not escaped."""
  for split in ('train', 'validation', 'test'):
    write(tmp_path, f'{split}.tsv', ['The man’s dog, 3.5 m away.\tDer „Hund“ ist 3,5 m weg.'])
  corpus = make_source(f'parallel("{tmp_path}/{{split}}.tsv", lowercase=True, moses=("en", "de"))').prepare(
    tmp_path
  )
  expected = ("the man 's dog , 3.5 m away .", 'der " hund " ist 3,5 m weg .')
  assert all_pairs(corpus) == {expected: 3}


def test_moses_needs_both_languages(make_source):
  with pytest.raises(ValueError, match=r"has moses=\('de',\); name the languages of both sides, or none"):
    make_source('parallel("a.en", "a.de", moses=("de",))').raw_documents()


def test_files_of_each_split(tmp_path, make_source):
  parts = dict(train=PAIRS[:300], val=PAIRS[300:350], test_2016=PAIRS[350:])
  for name, results in parts.items():
    for language, texts in zip(('en', 'de'), zip(*results)):
      write(tmp_path, f'{name}.{language}', texts)
  corpus = make_source(
    f'parallel("{tmp_path}/{{split}}.en", "{tmp_path}/{{split}}.de", splits={tuple(parts)})'
  ).prepare(tmp_path)
  for split, results in zip(('train', 'validation', 'test'), parts.values()):
    assert collections.Counter(pairs(corpus, split)) == collections.Counter(results)


def test_a_source_sentence_is_in_one_split(tmp_path, make_source):
  """With different translations, too."""
  results = [(a, f'{b} {n}') for a, b in PAIRS for n in range(2)]
  write(tmp_path, 'a.tsv', map('\t'.join, results))
  corpus = make_source(f'parallel("{tmp_path}/a.tsv")').prepare(tmp_path)
  sides = [set(corpus.splits[split]['source']) for split in ('train', 'validation', 'test')]
  assert sum(map(len, sides)) == len(set().union(*sides)) == 400


def test_empty_sides_are_skipped_with_a_warning(tmp_path, make_source, caplog):
  broken = [*PAIRS]
  for i in (2, 5, 390):
    broken[i] = (broken[i][0], ' ') if i % 2 else ('', broken[i][1])
  write(tmp_path, 'a.tsv', map('\t'.join, broken))
  corpus = make_source(f'parallel("{tmp_path}/a.tsv")').prepare(tmp_path)
  assert sum(corpus.documents.values()) == 397
  warnings = [record.getMessage() for record in caplog.records if 'empty side' in record.getMessage()]
  assert len(warnings) == 1 and '3 of 400 pairs' in warnings[0] and 'lines 3, 6, 391' in warnings[0]


@pytest.mark.parametrize(
  'spec, sentence',
  [
    ('"{}/a.en", "{}/short.de"', r'a.en has 3 lines and .*short.de 2; line i of one must be the translation'),
    ('"{}/a.en", "{}/none.de"', r'none.de. does not exist'),
    ('"{}/a.en"', r'a.en:1 has 1 columns; a line must be `source TAB target`'),
    ('"{}/{{split}}.en", "{}/a.en"', r'has \{{split\}} in only one path'),
    ('"{}/{{split}}.en", "{}/{{split}}.de", splits=()', r'splits=\(\) must name the training split'),
    ('"{}/a.en", "{}/latin.de"', r'latin.de:2 is not UTF-8'),
    ('"{}/a.en", "{}/a.en"', r'too few documents to be split by their hashes: 3'),
  ],
)
def test_invalid_files_are_rejected(tmp_path, make_source, spec, sentence):
  write(tmp_path, 'a.en', 'one two three'.split())
  write(tmp_path, 'short.de', 'eins zwei'.split())
  (tmp_path / 'latin.de').write_bytes(b'eins\nzw\xf6lf\ndrei\n')
  with pytest.raises(ValueError, match=sentence.replace('{{', '{').replace('}}', '}')):
    make_source(f'parallel({spec.format(tmp_path, tmp_path)})').prepare(tmp_path / 'cache')


class Prepared(tensorflow_datasets.core.GeneratorBasedBuilder, skip_registration=True):
  """Like a prepared `wmt14_translate/de-en`, which TFDS can only prepare with TensorFlow."""

  name = 'wmt14_translate'
  VERSION = tensorflow_datasets.core.Version('1.0.0')
  BUILDER_CONFIGS = [tensorflow_datasets.core.BuilderConfig(name='de-en')]
  url_infos = {}

  def _info(self):
    return tensorflow_datasets.core.DatasetInfo(
      builder=self, features=tensorflow_datasets.features.Translation(languages=('de', 'en'))
    )

  def _split_generators(self, dl_manager):
    return {
      split: self._generate_examples(split, size)
      for split, size in dict(train=50, validation=5, test=7).items()
    }

  def _generate_examples(self, split, count):
    for i in range(count):
      yield i, {'de': f'{split} Zeile {i}', 'en': f'{split} line {i}'}


def test_a_prepared_tfds_set_of_translations(tmp_path, make_source):
  Prepared(data_dir=str(tmp_path), file_format='array_record').download_and_prepare()
  source = make_source(f"tfds('wmt14_translate/de-en', 'en', 'de', data_dir='{tmp_path}')")
  assert source.fields == ('source', 'target')
  corpus = source.prepare(tmp_path / 'cache')
  for split, size in dict(train=50, validation=5, test=7).items():
    assert set(pairs(corpus, split)) == {(f'{split} line {i}', f'{split} Zeile {i}') for i in range(size)}
  with pytest.raises(ValueError, match="no text under 'fr'; it has .*'de', 'en'"):
    make_source(f"tfds('wmt14_translate/de-en', 'en', 'fr', data_dir='{tmp_path}')").prepare(
      tmp_path / 'cache'
    )
