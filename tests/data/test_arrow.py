"""Arrow and Parquet files: every row once, splits by the names of folders and files, read in parts."""

import collections
import logging

import pyarrow
import pyarrow.parquet
import pytest


SPLITS = ('train', 'validation', 'test')
ROWS = {
  split: [f'{split} {i} né'[: i % 40] for i in range(count)] for split, count in zip(SPLITS, (300, 7, 9))
}
STRINGS = pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())


def write(path, texts, kind=pyarrow.string(), column='text', rows=100):
  """Writes a file as `datasets` does: Parquet, or Arrow's stream format in batches."""
  texts = pyarrow.array(texts, pyarrow.string()).cast(kind)
  table = pyarrow.table({'id': range(len(texts)), column: texts})
  path.parent.mkdir(parents=True, exist_ok=True)
  if path.suffix == '.parquet':
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return
  with pyarrow.OSFile(str(path), 'wb') as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
    writer.write_table(table, max_chunksize=rows)


def texts(corpus):
  return {split: collections.Counter(columns['text']) for split, columns in corpus.splits.items()}


EXPECTED = {split: collections.Counter(rows) for split, rows in ROWS.items()}


@pytest.mark.parametrize('kind', STRINGS, ids=str)
@pytest.mark.parametrize(
  'file, path',
  [
    ('{split}/data-00000-of-00001.arrow', ''),  # DatasetDict.save_to_disk
    ('data/{split}-00000-of-00001.parquet', ''),  # the Hub
    ('{split}-00000-of-00001.parquet', ''),
    ('{split}/0000.parquet', ''),
    ('{split}.parquet', ''),
    ('{split}.arrow', '/{split}.arrow'),
    ('x/{split}-1.parquet', '/*/{split}-*.parquet'),
  ],
)
def test_a_split_is_named_by_its_folder_or_its_files(tmp_path, make_source, file, path, kind):
  for split, rows in ROWS.items():
    write(tmp_path / 'set' / file.replace('{split}', split), rows, kind)
  (tmp_path / 'set' / 'dataset_dict.json').write_text('{"splits": ["train", "validation", "test"]}')
  assert texts(make_source(f"arrow('{tmp_path}/set{path}')").prepare(tmp_path / 'cache')) == EXPECTED


@pytest.mark.parametrize('ending', ('arrow', 'parquet'))
def test_files_without_splits_are_split_by_hashes(tmp_path, make_source, ending):
  for i in range(3):  # Dataset.save_to_disk(…, num_shards=3)
    write(
      tmp_path / 'set' / f'data-{i:05}-of-00003.{ending}',
      ROWS['train'][i * 100 : (i + 1) * 100],
      column='body',
    )
  corpus = make_source(f"arrow('{tmp_path}/set', column='body')").prepare(tmp_path / 'cache')
  assert sum(texts(corpus).values(), collections.Counter()) == EXPECTED['train']
  assert all(corpus.documents[split] for split in SPLITS)


def test_the_file_format_of_arrow_is_read_too(tmp_path, make_source):
  table = pyarrow.table({'text': ROWS['train']})
  with (
    pyarrow.OSFile(str(tmp_path / 'a.arrow'), 'wb') as file,
    pyarrow.ipc.new_file(file, table.schema) as writer,
  ):
    writer.write_table(table, max_chunksize=70)
  corpus = make_source(f"arrow('{tmp_path}/a.arrow')").prepare(tmp_path / 'cache')
  assert sum(texts(corpus).values(), collections.Counter()) == EXPECTED['train']


def test_a_folder_without_validation_has_it_carved_and_other_splits_are_reported(
  tmp_path, make_source, caplog
):
  for split, rows in dict(train=ROWS['train'], test=ROWS['test'], unsupervised=['no']).items():
    write(tmp_path / 'set' / split / 'data.arrow', rows)
  with caplog.at_level(logging.WARNING):
    corpus = make_source(f"arrow('{tmp_path}/set')").prepare(tmp_path / 'cache')
  assert texts(corpus)['test'] == EXPECTED['test']
  assert texts(corpus)['train'] + texts(corpus)['validation'] == EXPECTED['train']
  assert "the splits ['unsupervised'] are not used" in caplog.text
  source = f"arrow('{tmp_path}/set', splits=('unsupervised', 'test', 'train'))"
  assert make_source(source).prepare(tmp_path / 'cache').documents == dict(train=1, validation=9, test=300)


@pytest.mark.parametrize('ending', ('arrow', 'parquet'))
def test_files_are_read_in_parts(tmp_path, make_source, ending):
  big = [chr(97 + i % 26) * (9_000 + i) for i in range(3000)]  # 31 MB
  write(tmp_path / f'a.{ending}', big, rows=150)
  pool = pyarrow.default_memory_pool()
  before = pool.bytes_allocated()
  reading = make_source(f"arrow('{tmp_path}/a.{ending}')")._read(tmp_path / f'a.{ending}')
  peak = 0
  for count, text in enumerate(reading, start=1):
    assert text == big[count - 1]
    peak = max(peak, pool.bytes_allocated() - before)
  assert count == 3000 and peak < 10_000_000


@pytest.mark.parametrize(
  'path, more, sentence',
  [
    (
      'strings.arrow',
      ", column='body'",
      r"strings.arrow has no column 'body' of text; it has \['text'\], set column=",
    ),
    ('strings.arrow', ", column='id'", r"no column 'id' of text; it has \['text'\]"),
    ('null.parquet', '', r"null.parquet has no text in row 1 of 'text'"),
    ('null.arrow', '', r"null.arrow has no text in row 1 of 'text'"),
    ('cut.arrow', '', r'cut.arrow cannot be read as an Arrow or Parquet file'),
    ('cut.parquet', '', r'cut.parquet cannot be read as an Arrow or Parquet file'),
    ('latin.arrow', '', r'latin.arrow cannot be read as an Arrow or Parquet file: .*utf-8'),
    ('x.txt', '', r'x.txt is not an .arrow or .parquet file'),
    ('none.arrow', '', r'matches no file: .*none.arrow. does not exist'),
    ('empty', '', r'is a folder without .arrow and .parquet files'),
    ('set', '', r"use splits=\('train', 'valid'\)$"),
    ('set', ", splits=('train', 'dev')", r"use splits=\('train', 'valid'\)$"),
  ],
)
def test_what_cannot_be_read_is_rejected_by_name(tmp_path, make_source, path, more, sentence):
  write(tmp_path / 'strings.arrow', ['a'])
  for ending in ('arrow', 'parquet'):
    write(tmp_path / f'null.{ending}', ['a', None])
    write(tmp_path / f'cut.{ending}', ['a' * 999])
    data = (tmp_path / f'cut.{ending}').read_bytes()
    (tmp_path / f'cut.{ending}').write_bytes(data[: len(data) // 2])
  write(tmp_path / 'latin.arrow', ['caf?'])
  (tmp_path / 'latin.arrow').write_bytes((tmp_path / 'latin.arrow').read_bytes().replace(b'caf?', b'caf\xe9'))
  (tmp_path / 'x.txt').write_text('a')
  (tmp_path / 'empty').mkdir()
  for split in ('train', 'valid'):
    write(tmp_path / 'set' / split / 'data.arrow', ['a'])
  with pytest.raises(ValueError, match=sentence):
    make_source(f"arrow('{tmp_path}/{path}'{more})").prepare(tmp_path / 'cache')
