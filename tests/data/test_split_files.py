"""Files of each split, the last tenth of a text, and refusals that name what would do."""

import collections

import pytest


SPLITS = ('train', 'validation', 'test')


def write(folder, **texts):
  for name, text in texts.items():
    path = folder / f'{name.replace("__", "/")}.txt'
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, newline='')


def contents(corpus, field='text'):
  return {split: list(columns[field]) for split, columns in corpus.splits.items()}


def test_each_split_is_its_file(tmp_path, make_source):
  texts = dict(train='all of\n\nthe training', valid='validation é', test='\n')
  write(tmp_path, **texts)
  corpus = make_source(f"text('{tmp_path}/{{split}}.txt', splits=('train', 'valid', 'test'))").prepare(
    tmp_path
  )
  assert contents(corpus) == dict(zip(SPLITS, ([text] for text in texts.values())))


def test_a_split_is_a_folder_of_files(tmp_path, make_source):
  write(tmp_path, train__a='one', train__b='two', dev__a='three', test__a='four')
  corpus = make_source(f"text('{tmp_path}/{{split}}/*.txt', splits=('train', 'dev', 'test'))").prepare(
    tmp_path
  )
  assert {split: set(texts) for split, texts in contents(corpus).items()} == dict(
    train={'one', 'two'}, validation={'three'}, test={'four'}
  )


@pytest.mark.parametrize('splits', [('train', 'valid'), ('train', '', 'valid')])
def test_a_split_without_files_is_carved_out_of_the_training_split(tmp_path, make_source, make_text, splits):
  book = make_text(0, 3000)
  write(tmp_path, train=book, valid='held out')
  corpus = make_source(f"text('{tmp_path}/{{split}}.txt', splits={splits})").prepare(tmp_path)
  named, carved = SPLITS[splits.index('valid')], SPLITS[3 - splits.index('valid')]
  assert contents(corpus)[named] == ['held out']
  assert corpus.bytes['train'] + corpus.bytes[carved] == len(book.encode())
  assert 0.04 < corpus.bytes[carved] / len(book.encode()) < 0.07


@pytest.mark.parametrize('tail', (0.1, 0.5, 0.25))
def test_the_tail_is_that_of_the_characters(tmp_path, make_source, make_text, tail):
  data = make_text(2, 300) + 'é猫🐈'
  write(tmp_path, input=data)
  corpus = make_source(f"text('{tmp_path}/input.txt', tail={tail})").prepare(tmp_path)
  border = int(len(data) * (1 - tail))  # as data/shakespeare_char/prepare.py of nanoGPT divides
  assert contents(corpus) == dict(train=[data[:border]], validation=[data[border:]])
  assert corpus.documents == dict(train=1, validation=1)
  assert corpus.bytes == {split: len(text.encode()) for split, [text] in contents(corpus).items()}


def test_the_tail_of_several_files_is_that_of_them_all(tmp_path, make_source):
  write(tmp_path, a='0123456789', b='', c='abcdefghij', d='')
  corpus = make_source(f"text('{tmp_path}/*.txt', tail=0.25)").prepare(tmp_path)
  counts = {split: collections.Counter(texts) for split, texts in contents(corpus).items()}
  assert counts == dict(
    train=collections.Counter(['0123456789', '', 'abcde']), validation=collections.Counter(['fghij', ''])
  )


@pytest.mark.parametrize(
  'spec, sentence',
  [
    ("text('{}/{{split}}.txt')", r"validation.txt' does not exist; use splits=\('train', 'valid'\)$"),
    ("text('{}/{{split}}.t*t')", r"validation.t\*t' does not exist; use splits=\('train', 'valid'\)$"),
    ("labelled('{}/{{split}}.txt')", r"use splits=\('train', 'valid'\)$"),
    (
      "text('{}/x/{{split}}/*.txt')",
      r"x/train/\*.txt' does not exist; use splits=\('training', '', 'test'\)$",
    ),
    ("text('{}/x/{{split}}/{{split}}.txt')", r"splits=\('training', '', 'test'\)$"),
    ("text('{}/y/{{split}}.txt')", r'set splits=\(…\) to the names of the files: one, two$'),
    ("text('{}/z/{{split}}.txt')", r'give the path of files that do$'),
    ("text('{}/none.txt')", r'matches no file: .*none.txt. does not exist; give'),
    ("text('{}/x/')", r"x/' is a folder; use a pattern such as '.*/x/\*\*/\*.txt'$"),
    (
      "text('{}/train.txt', splits=('train', 'valid'))",
      r'replaces \{split\}, which .*train.txt. does not have',
    ),
    (
      "text('{}/{{split}}.txt', splits=('', 'valid'))",
      r"splits=\('', 'valid'\) must name the training split",
    ),
    ("text('{}/{{split}}.txt', tail=0.1)", r'tail=0.1 takes .* has files for each split; use one'),
    ("text('{}/empty.txt', tail=0.1)", r'is empty'),
    ("text('{}/{{split}}.txt', splits=('train', 'empty'))", r"no text in its 'validation' split, whose"),
    ("text('{}/{{split}}.txt', splits=('empty', 'valid'))", r"no text in its 'train' split, whose"),
    ("text('{}/one.txt', tail=0.1)", r"no documents in its 'train' split"),
    ("parallel('{}/*.txt', '{}/*.txt')", r'matches 4 files for one split: .*empty.txt, …; give one file'),
  ],
)
def test_what_does_not_exist_is_rejected_with_what_does(tmp_path, make_source, spec, sentence):
  write(tmp_path, train='a' * 99, valid='b', empty='', one='c', y__one='', y__two='')
  for name in ('training', 'test'):
    (tmp_path / 'x' / name).mkdir(parents=True)
    write(tmp_path / 'x' / name, **{name: 'a'})
  (tmp_path / 'x' / 'validation').mkdir()  # has no files
  with pytest.raises(ValueError, match=sentence):
    make_source(spec.format(tmp_path, tmp_path)).prepare(tmp_path / 'cache')


def test_a_relative_path_is_rejected_with_the_folder_that_lacks_it(tmp_path, make_source, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=f"'one.txt' does not exist in {tmp_path}; give the path"):
    make_source("text('one.txt')").prepare(tmp_path / 'cache')
