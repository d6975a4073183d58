"""Sources: nothing lost, splits that stay, and refusals by name."""

import collections
import gzip
import json
import pathlib
import subprocess
import sys

import pytest
import zstandard

from tfm import spec
from tfm.data import splitting
from tfm.data.corpus import RawDocuments, prepare_corpus
from tfm.data.source_paths import specs_of_path


SPLITS = ('train', 'validation', 'test')


def texts(corpus) -> dict[str, collections.Counter]:
  return {split: collections.Counter(corpus.splits[split]['text']) for split in SPLITS}


def every(corpus) -> collections.Counter:
  return sum(texts(corpus).values(), collections.Counter())


def jsonl(documents, field='text') -> bytes:
  lines = [json.dumps({field: text, 'n': n}) + '\n' for n, text in enumerate(documents)]
  return ''.join(lines).encode()


def prepare(name, read, cache_dir, fixed=()):
  return prepare_corpus(RawDocuments(name, [read], fixed), cache_dir)


@pytest.fixture(scope='module')
def documents(make_text) -> list[str]:
  return [make_text(seed, 1 + seed % 7) for seed in range(400)] + ['', 'twice', 'twice', 'twice']


def test_nothing_is_lost_and_the_counts_are_correct(documents, tmp_path, cache_dir, make_source):
  (tmp_path / 'a.jsonl').write_bytes(jsonl(documents))
  corpus = make_source(f"text('{tmp_path}/a.jsonl')").prepare(cache_dir)
  assert every(corpus) == collections.Counter(documents)
  for split in SPLITS:
    assert corpus.documents[split] == len(corpus.splits[split]['text']) > 0
    assert corpus.splits[split]['text'][-1] == [*corpus.splits[split]['text']][-1]
    assert corpus.splits[split]['text'][3] == [*corpus.splits[split]['text']][3]
    assert corpus.bytes[split] == sum(len(text.encode()) for text in corpus.splits[split]['text'])
  assert sum('twice' in results for results in texts(corpus).values()) == 1  # no copy across splits
  assert corpus.documents['train'] > 0.8 * len(documents)


def test_splits_do_not_depend_on_the_order_or_the_names_of_files(documents, tmp_path, make_source):
  for name, order in (('a', documents), ('b', documents[::-1])):
    (tmp_path / name).mkdir()
    for index, text in enumerate(order):
      (tmp_path / name / f'{index:03}.txt').write_text(text, newline='')
  (tmp_path / 'b' / '000.txt').rename(tmp_path / 'b' / 'zzz.txt')
  a, b = (
    make_source(f"text('{tmp_path}/{name}/*.txt')").prepare(tmp_path / 'caches' / name) for name in 'ab'
  )  # each prepared, none found
  assert a.hash == b.hash
  for split in SPLITS:
    assert list(a.splits[split]['text']) == list(b.splits[split]['text'])


def test_splits_do_not_change_when_documents_are_added(documents, tmp_path, cache_dir, make_source):
  (tmp_path / 'a.jsonl').write_bytes(jsonl(documents))
  (tmp_path / 'b.jsonl').write_bytes(jsonl(['new', *documents]))
  a, b = (make_source(f"text('{tmp_path}/{name}.jsonl')").prepare(cache_dir) for name in 'ab')
  assert a.hash != b.hash
  for split in SPLITS:
    assert not texts(a)[split] - texts(b)[split]


def test_the_hash_depends_on_every_character(tmp_path, cache_dir, make_source, make_text):
  hashes = set()
  for index, end in enumerate(('', ' ', '\n', '\r\n', '\0', '\ufeff')):
    (tmp_path / f'{index}.txt').write_text(make_text(0, 400) + end, newline='')
    corpus = make_source(f"text('{tmp_path}/{index}.txt')").prepare(cache_dir)
    assert sum(corpus.bytes.values()) == (tmp_path / f'{index}.txt').stat().st_size
    hashes.add(corpus.hash)
  assert len(hashes) == 6


def test_the_hash_depends_on_the_splits(cache_dir):
  hashes = {
    prepare('own', lambda: zip(SPLITS, texts), cache_dir, fixed=SPLITS).hash
    for texts in ('abc', 'acb', 'bac')
  }
  assert len(hashes) == 3


def test_three_documents_are_one_for_each_split(cache_dir):
  for n in range(12):
    texts = [f'{n}a', f'{n}b', f'{n}c' + 'c' * 100]
    corpus = prepare('three', lambda: ((None, text) for text in texts), cache_dir)
    assert set(corpus.documents.values()) == {1} and set(every(corpus)) == set(texts)


def test_a_single_book_is_divided_into_pieces_with_a_warning(
  tmp_path, cache_dir, make_source, make_text, caplog
):
  book = make_text(1, 6000)
  (tmp_path / 'book.txt').write_text(book, newline='')
  corpus = make_source(f"text('{tmp_path}/book.txt')").prepare(cache_dir)
  make_source(f"text('{tmp_path}/book.txt')").prepare(cache_dir)
  assert caplog.text.count('too few documents') == 1 and 'book.txt' in caplog.text
  pieces = list(every(corpus).elements())
  assert sum(map(len, pieces)) == len(book) and all(piece in book for piece in pieces)
  assert sorted(''.join(pieces).split('\n')) == sorted(book.split('\n'))
  for split in ('validation', 'test'):
    assert 0.04 < corpus.bytes[split] / len(book.encode()) < 0.07


def test_a_few_files_of_uneven_size_are_divided_too(tmp_path, cache_dir, make_source, make_text):
  plays = {'a': 3000, 'b': 20, 'c': 1000}
  for name, lines in plays.items():
    (tmp_path / f'{name}.txt').write_text(make_text(lines, lines), newline='')
  corpus = make_source(f"text('{tmp_path}/*.txt')").prepare(cache_dir)
  assert sum(corpus.bytes.values()) == sum(p.stat().st_size for p in tmp_path.iterdir())
  assert all(0.04 < corpus.bytes[s] / sum(corpus.bytes.values()) < 0.07 for s in SPLITS[1:])


@pytest.mark.parametrize('size', (1, 3, 50, 10**6))
@pytest.mark.parametrize(
  'text',
  (
    '',
    '\n',
    'a',
    'a\n\nb',
    '\n\n\n',
    'x' * 500,
    'no end\nof line',
    'a\r\n\r\nb\r\n' * 40,
    '\n' * 300 + 'é猫🐈\u2028\x85\f\v' * 50,
  ),
)
def test_pieces_join_to_the_text(text, size):
  pieces = list(splitting.split_text(text, size))
  assert ''.join(pieces) == text
  assert all(len(piece) <= 2 * size for piece in pieces)
  assert all(pieces) or pieces == ['']


def test_pieces_end_at_blank_lines(make_text):
  text = make_text(3, 3000)
  ends = [piece.endswith('\n\n') for piece in list(splitting.split_text(text, 1000))[:-1]]
  assert sum(ends) > 0.8 * len(ends) > 20


@pytest.mark.parametrize(
  'compress',
  (
    lambda data: ('', data),
    lambda data: ('.gz', gzip.compress(data[:700]) + gzip.compress(data[700:])),
    lambda data: ('.zst', b''.join(map(zstandard.compress, (data[:700], data[700:])))),
  ),
)
def test_compressed_files_are_the_same_text(compress, documents, tmp_path, cache_dir, make_source, make_text):
  suffix, data = compress(jsonl(documents, field='body'))
  (tmp_path / f'a.jsonl{suffix}').write_bytes(data)
  corpus = make_source(f"text('{tmp_path}/a.*', field='body')").prepare(cache_dir)
  assert every(corpus) == collections.Counter(documents)
  book = make_text(5, 3000)
  suffix, data = compress(book.encode())
  (tmp_path / f'book.txt{suffix}').write_bytes(data)
  corpus = make_source(f"text('{tmp_path}/book*')").prepare(cache_dir)
  assert sum(corpus.bytes.values()) == len(book.encode())


def test_patterns_are_recursive_and_expand_the_home_folder(
  tmp_path, cache_dir, make_source, monkeypatch, make_text
):
  monkeypatch.setenv('HOME', str(tmp_path))
  (tmp_path / 'x' / 'y').mkdir(parents=True)
  (tmp_path / 'x' / 'a[1].txt').write_text(make_text(0, 300), newline='')
  (tmp_path / 'x' / 'y' / 'b.txt').write_text(make_text(1, 300), newline='')
  both = make_source("text('~/x/**/*.txt')").prepare(cache_dir)
  one = make_source("text('~/x/a[1].txt')").prepare(cache_dir)  # a name that looks like a pattern
  sizes = [len(make_text(seed, 300).encode()) for seed in (0, 1)]
  assert sum(both.bytes.values()) == sum(sizes) and sum(one.bytes.values()) == sizes[0]


def test_a_line_is_a_document_with_any_line_end(tmp_path, cache_dir, make_source, documents):
  data = b'\r\n'.join([*jsonl(documents).splitlines(), b'', b'   ', b'{"text": "last"}'])
  (tmp_path / 'a.jsonl').write_bytes(data)
  corpus = make_source(f"text('{tmp_path}/a.jsonl')").prepare(cache_dir)
  assert every(corpus) == collections.Counter([*documents, 'last'])


GOOD = b'{"text": "fine"}\n'


@pytest.mark.parametrize(
  'name, data, message',
  (
    ('none', None, ('none', 'matches no file')),
    ('empty.txt', b'', ('empty.txt', 'empty')),
    ('empty.jsonl', b'{"text": ""}\n\n', ('empty.jsonl', 'empty')),
    ('short.txt', b'too little', ('short.txt', 'too short', '10 bytes')),
    ('same.txt', b'all\n\nall\n\n', ('same.txt', 'too short')),
    ('latin.txt', 'caf\xe9'.encode('latin-1'), ('latin.txt', 'not UTF-8', 'byte 3')),
    ('latin.jsonl', GOOD + b'{"text": "\xff"}', ('latin.jsonl:2', 'not UTF-8')),
    ('bad.jsonl', GOOD + b'\n{"text": "fine"\n' + GOOD, ('bad.jsonl:3', 'not JSON')),
    ('key.jsonl', GOOD + b'{"body": "fine"}\n', ('key.jsonl:2', "'text'", "['body']")),
    ('null.jsonl', GOOD + b'{"text": null}\n', ('null.jsonl:2', "'text'")),
    ('list.jsonl', GOOD + b'["text"]\n', ('list.jsonl:2', "'text'", 'list')),
    ('half.jsonl', GOOD + b'{"text": "\\ud83d"}\n', ('half.jsonl:2', 'surrogate')),
    ('a.csv', b'text', ('a.csv', '.jsonl')),
    ('a.csv.gz', gzip.compress(b'text', mtime=0), ('a.csv.gz', '.jsonl')),
    ('not.txt.gz', b'text', ('not.txt.gz', 'cannot be read')),
    ('cut.txt.gz', gzip.compress(b'text' * 999, mtime=0)[:-9], ('cut.txt.gz', 'cannot be read')),
    ('not.txt.zst', b'text', ('not.txt.zst', 'cannot be read')),
    ('cut.txt.zst', zstandard.compress(b'text' * 999)[:-2], ('cut.txt.zst', 'middle of a zstd')),
  ),
)
def test_errors_name_the_file(name, data, message, tmp_path, cache_dir, make_source):
  if data is not None:
    (tmp_path / name).write_bytes(data)
  with pytest.raises(ValueError) as error:
    make_source(f"text('{tmp_path}/{name}')").prepare(cache_dir)
  for words in message:
    assert words in str(error.value)


def test_unreadable_files_are_rejected(tmp_path, cache_dir, make_source):
  (tmp_path / 'folder.txt').mkdir()
  with pytest.raises(ValueError, match='folder.txt.*matches no file'):
    make_source(f"text('{tmp_path}/folder.txt')").prepare(cache_dir)
  (tmp_path / 'gone.txt').symlink_to(tmp_path / 'nowhere')
  with pytest.raises(ValueError, match='gone.txt cannot be read'):
    make_source(f"text('{tmp_path}/*.txt')").prepare(cache_dir)


def test_a_source_that_changes_while_it_is_read_is_rejected(cache_dir, make_text):
  reads = []

  def read():
    reads.append(None)
    for seed in range(300):
      yield None, make_text(seed, 5) + '!' * (len(reads) > 1 and seed == 7)

  with pytest.raises(ValueError, match='growing changed while it was read'):
    prepare('growing', read, cache_dir)
  assert len(reads) > 1


@pytest.mark.slow
def test_stdlib_is_the_library_without_its_tests(cache_dir, make_source):
  corpus = make_source('stdlib').prepare(cache_dir)
  again = make_source('stdlib').prepare(cache_dir)
  assert corpus.hash == again.hash and corpus.name == 'stdlib'
  assert sum(corpus.bytes.values()) > 8_000_000
  root = pathlib.Path(json.__file__).parent.parent
  results = every(corpus)
  assert (root / 'json' / 'decoder.py').read_bytes().decode() in results
  outside = {'test', 'tests', 'site-packages'}
  for path in [path for path in root.rglob('*.py') if outside & set(path.parts)][:200]:
    data = path.read_bytes()
    assert len(data) < 200 or data.decode(errors='replace') not in results, path


def test_a_second_file_is_not_taken_for_the_name_of_a_field(tmp_path, cache_dir, make_source):
  (tmp_path / 'train.txt').write_text('text')
  with pytest.raises(ValueError, match="field='valid.txt' is a key of .jsonl files.*txt\", splits="):
    make_source(f"text('{tmp_path}/train.txt', 'valid.txt')").prepare(cache_dir)


@pytest.mark.slow
def test_tensorflow_is_never_imported(tmp_path, make_text):
  (tmp_path / 'a.txt').write_text(make_text(0, 900), newline='')
  program = f"""
import sys
from tfm import spec
from tfm.data import packing, pipeline, sources, tokenizers
from tfm.data.sources.protocol import Source
from tfm.data.tokenizers.protocol import Tokenizer
source = spec.build("text('{tmp_path}/a.txt')", sources, Source)
text = pipeline.open_text(source, spec.build('char', tokenizers, Tokenizer), '{tmp_path}/cache')
rows = spec.build('concat', packing, packing.protocol.Packing).rows(text.tokens('train'), 16, 0)
iterator = pipeline.train_iterator(rows, 2)
assert next(iterator)['inputs'].shape == (2, 16)
iterator.close()
assert 'tensorflow_datasets' in sys.modules
print([name for name in sys.modules if name.split('.')[0] == 'tensorflow'])
"""
  done = subprocess.run(
    [sys.executable, '-W', 'error::ResourceWarning', '-c', program],
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.strip() == '[]', done.stdout


@pytest.mark.parametrize(
  'path, specs',
  (
    ('a/x.txt', 'text("{}a/x.txt")'),
    ('a/x.txt.gz', 'text("{}a/x.txt.gz")'),
    ('a/{{split}}.txt', 'text("{}a/{{split}}.txt")'),
    ('a/*.jsonl', 'preferences("{0}a/*.jsonl") or text("{0}a/*.jsonl")'),
    ('a', 'text("{}a/**/*.txt")'),
    ('b/', 'preferences("{0}b/**/*.jsonl.zst") or text("{0}b/**/*.jsonl.zst")'),
    ('c', 'folder("{}c", size=…)'),
    ('x.csv', 'table("{}x.csv", text=…, label=…)'),
    ('x.tsv', 'labelled("{0}x.tsv") or parallel("{0}x.tsv") or table("{0}x.tsv", text=…, label=…)'),
  ),
)
def test_a_path_alone_is_refused_with_the_specs_that_read_it(path, specs, tmp_path, make_source):
  for name in ('a/x.txt', 'b/b/x.jsonl.zst', 'c/cat/x.png'):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
  path = f'{tmp_path}/{path}'.format()
  with pytest.raises(ValueError) as error:
    make_source(path)
  assert str(error.value) == f'{path!r} is a path, not a source; use {specs.format(f"{tmp_path}/")}'


def test_suffixes_that_cannot_be_read_are_refused_with_their_file(tmp_path, monkeypatch):
  (tmp_path / 'mine.py').write_text('class Mine:\n  suffixes = (*KNOWN,)')
  monkeypatch.setattr(spec, 'variant_files', lambda package: {'mine': str(tmp_path / 'mine.py')})
  with pytest.raises(ValueError, match='mine.py cannot be read as a source whose suffixes are literals'):
    specs_of_path('a.txt')


@pytest.mark.parametrize(
  'text', ('txt', 'mydir/input', 'photo.png', '~nobody/x', 'a\0.txt', 'x' * 5000 + '/y', 'text(x.txt)')
)
def test_another_invalid_spec_is_no_path(text, make_source):
  with pytest.raises(ValueError) as error:
    make_source(text)
  assert ('is a path' in str(error.value)) == (text == 'a\0.txt')
