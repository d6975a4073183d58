"""Prepared tokens: the same run as on the text, and each process reads only its own rows."""

import json
import pathlib

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm import spec
from tfm.data import packing, pipeline, preparation, sources, tokenizers
from tfm.data.documents import SPLITS, Survey
from tfm.data.packing.protocol import FIELDS, Packing
from tfm.data.prepared_tokens import open_prepared
from tfm.data.sources.protocol import Source
from tfm.data.sources.text import Text
from tfm.data.token_shards import ShardedIds, Storage, shard_name
from tfm.data.tokenizers.bytes import Bytes
from tfm.data.tokenizers.protocol import Tokenizer


def prepare(source, tokenizer, url, cache_dir, shard_bytes=preparation.SHARD_BYTES):
  """Prepares a source, with the tokenizer that a spec names for all fields; returns its `TextData`."""
  preparation.validate_preparation(source, url)
  engine = preparation.InProcess(cache_dir, shard_bytes)
  untrained = spec.build(tokenizer, tokenizers, Tokenizer)
  data = pipeline.train_tokenizers(source.open_corpus(engine.store), untrained, cache_dir)
  preparation.prepare_tokens(data, dict.fromkeys(source.fields, tokenizer), str(url), engine)
  return data


def open_text(source, tokenizer, cache_dir):
  return pipeline.open_text(source, spec.build(tokenizer, tokenizers, Tokenizer), cache_dir)


@pytest.fixture(scope='module')
def documents(make_text):
  """Texts with copies and empty ones."""
  return [make_text(seed, 1 + seed % 7) for seed in range(300)] + ['', '', *['twice, thrice'] * 5]


@pytest.fixture(scope='module')
def source(documents, tmp_path_factory):
  path = tmp_path_factory.mktemp('texts') / 'texts.jsonl'
  path.write_text(''.join(json.dumps(dict(text=text)) + '\n' for text in documents))
  return Text(str(path))


@pytest.fixture(scope='module')
def pairs(make_text, tmp_path_factory):
  folder = tmp_path_factory.mktemp('pairs')
  for side in 'ab':
    lines = [f'{side}{i % 190} ' + make_text(i % 190, 1).strip() + side for i in range(200)]
    (folder / side).write_text('\n'.join(lines) + '\n')
  return spec.build(f'parallel({str(folder / "a")!r}, {str(folder / "b")!r})', sources, Source)


def assert_same_tokens(ours, theirs):
  np.testing.assert_array_equal(ours.offsets, theirs.offsets)
  np.testing.assert_array_equal(ours.ids[:], theirs.ids)
  assert ours.ids.dtype == theirs.ids.dtype and len(ours.ids) == len(theirs.ids)
  for name in ('documents', 'targets', 'bytes', 'eos_id', 'bos_id', 'prefix', 'boundary_ids'):
    assert getattr(ours, name) == getattr(theirs, name)
  np.testing.assert_array_equal(ours.document(3), theirs.document(3))


@pytest.mark.parametrize('shards', [1, 3, 400])
@pytest.mark.parametrize('tokenizer', ['bytes', 'sentencepiece(400)'])
def test_prepared_tokens_are_those_of_the_text(source, tokenizer, shards, tmp_path, cache_dir):
  text = open_text(source, tokenizer, cache_dir)
  prepare(source, tokenizer, tmp_path / 'to', cache_dir, -(-text.corpus.bytes['train'] // shards))
  sizes = [path.stat().st_size for path in (tmp_path / 'to').glob('train/text.ids-*')]
  assert 0.9 * shards < len(sizes) <= shards and (0 in sizes) == (shards == 400)  # some shards are empty
  own = spec.build(f"prepared('{tmp_path}/to')", sources, Source)
  data = open_text(own, tokenizer, tmp_path / 'unused')
  assert data.tokenizer == text.tokenizer and data.corpus.hash == text.corpus.hash
  assert data.corpus.documents == text.corpus.documents and data.corpus.bytes == text.corpus.bytes
  for split in SPLITS:
    assert_same_tokens(data.tokens(split), text.tokens(split))
    assert [*data.corpus.splits[split]['text']] == [*text.corpus.splits[split]['text']]
  assert not (tmp_path / 'unused').exists()  # nothing is tokenized again


def test_a_source_without_a_test_split(documents, tmp_path, cache_dir):
  (tmp_path / 'input.txt').write_text('\n'.join(documents))
  source = spec.build(f"text('{tmp_path}/input.txt', tail=0.1)", sources, Source)
  prepare(source, 'char', tmp_path / 'to', cache_dir)
  datas = [
    open_text(one, 'char', cache_dir)
    for one in (source, spec.build(f"prepared('{tmp_path}/to')", sources, Source))
  ]
  for split in ('train', 'validation'):
    np.testing.assert_array_equal(*(data.tokens(split).ids[:] for data in datas))
  for data in datas:
    with pytest.raises(ValueError, match="has no split 'test'"):
      data.tokens('test')


@pytest.mark.parametrize('pack', ['concat', 'first_fit', 'padded'])
def test_rows_are_those_of_the_text(source, pack, tmp_path, cache_dir):
  prepare(source, 'bytes', tmp_path / 'to', cache_dir, 5000)
  own, rule = spec.build(f"prepared('{tmp_path}/to')", sources, Source), spec.build(pack, packing, Packing)
  datas = [open_text(one, 'bytes', cache_dir) for one in (source, own)]
  for make in (
    lambda tokens: rule.rows(tokens, 200, seed=1),
    lambda tokens: rule.evaluation_rows(tokens, 200),
  ):
    ours, theirs = (make(data.tokens('train')) for data in datas)
    for index in (0, 1, 2, 30, 31):
      for field in FIELDS:
        np.testing.assert_array_equal(ours[index][field], theirs[index][field])


def test_pairs_are_prepared(pairs, tmp_path, cache_dir):
  prepare(pairs, 'char', tmp_path / 'to', cache_dir, 2000)
  own = spec.build(f"prepared('{tmp_path}/to', pairs=True)", sources, Source)
  ours, theirs = (open_text(one, 'char', cache_dir).tokens('train') for one in (own, pairs))
  assert_same_tokens(ours.source, theirs.source)
  assert_same_tokens(ours.target, theirs.target)
  for pack in ('buckets', 'first_fit'):
    rule = spec.build(pack, packing, Packing)
    batches = [next(pipeline.train_iterator(rule.rows(tokens, 256, seed=0), 4)) for tokens in (ours, theirs)]
    assert pipeline.batch_hash(batches[0]) == pipeline.batch_hash(batches[1])


def read_bytes():
  """The bytes that this process has read so far, by the kernel's count."""
  counts = dict(line.split(': ') for line in pathlib.Path('/proc/self/io').read_text().splitlines())
  return int(counts['rchar'])


@pytest.mark.skipif(
  not pathlib.Path('/proc/self/io').exists(), reason='only Linux counts the bytes that are read'
)
@pytest.mark.parametrize('pack', ['concat', 'first_fit'])
def test_each_of_four_processes_reads_a_quarter_of_the_tokens(
  pack, make_shares, make_text, tmp_path, cache_dir
):
  (tmp_path / 'book.txt').write_text(make_text(0, 30_000), newline='')
  prepare(Text(f'{tmp_path}/book.txt'), 'bytes', tmp_path / 'to', cache_dir, 200_000)
  own = spec.build(f"prepared('{tmp_path}/to')", sources, Source)
  read = []
  for share in make_shares(8, 4, 'tiles'):
    data = open_text(own, 'bytes', cache_dir)
    before = read_bytes()
    tokens = data.tokens('train')
    rows = spec.build(pack, packing, Packing).rows(tokens, 512, seed=0)
    index = read_bytes() - before
    assert index < 4 * tokens.documents + 1000  # the lengths
    batches = pipeline.Batches(rows, share)
    before = read_bytes()
    for batch in range(tokens.targets // 512 // 8):  # one epoch
      batches[batch]
    read.append((read_bytes() - before) / (tokens.ids.dtype.itemsize * len(tokens.ids)))
  assert all(0.22 < part < 0.28 for part in read) and 0.95 < sum(read) < 1.05, read


def test_tokens_in_a_bucket(source, tmp_path, cache_dir, monkeypatch):
  """fsspec's file system in memory, which is read as a bucket is: ranges of files by URL."""
  url, text = f'memory://{tmp_path.name}/to', open_text(source, 'bytes', cache_dir)
  prepare(source, 'bytes', url, cache_dir, 5000)
  data = open_text(spec.build(f"prepared('{url}')", sources, Source), 'bytes', cache_dir)
  for split in SPLITS:
    assert_same_tokens(data.tokens(split), text.tokens(split))
  requests, plain = [], fsspec.filesystem('memory').__class__.cat_ranges

  def cat_ranges(self, paths, starts, ends, **kwargs):
    requests.append(sum(np.array(ends) - np.array(starts)))
    return plain(self, paths, starts, ends, **kwargs)

  monkeypatch.setattr(fsspec.filesystem('memory').__class__, 'cat_ranges', cat_ranges)
  rows = spec.build('concat', packing, Packing).rows(data.tokens('train'), 64, seed=0)
  rows[5]
  assert len(requests) == 1 and 100 < requests[0] <= 130  # one request for a row, of its 65 tokens
  with pytest.raises(ValueError, match='is not empty; delete it'):
    prepare(source, 'bytes', url, cache_dir)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.data())
def test_sharded_tokens_are_indexed_as_an_array(counts, data):
  whole = np.arange(sum(counts), dtype='<u2')
  folder, parts = Storage('memory://indexing'), np.split(whole, np.cumsum(counts)[:-1])
  names = [shard_name('train', 'text', 'ids', i, len(counts)) for i in range(len(counts))]
  for name, part in zip(names, parts):
    folder.write(name, part.tobytes())
  ids = ShardedIds(folder, names, counts, whole.dtype)
  assert len(ids) == len(whole)
  first, stop = (data.draw(st.one_of(st.none(), st.integers(-60, 60))) for _ in range(2))
  np.testing.assert_array_equal(ids[first:stop], whole[first:stop])
  places = st.lists(st.integers(0, len(whole) - 1), max_size=20) if len(whole) else st.just([])
  index = np.array(data.draw(places), np.int64)
  np.testing.assert_array_equal(ids[index], whole[index])
  assert ids[index].dtype == whole.dtype


def test_a_mixture_is_prepared_with_one_tokenizer(source, make_text, tmp_path, cache_dir):
  (tmp_path / 'greek.txt').write_text(''.join(f'αβγ {i}\n\n' for i in range(3000)))
  named = dict(greek=Text(f'{tmp_path}/greek.txt'), texts=source)

  def mix(**changed):
    return spec.build('mix(greek=0.25, texts=0.75)', sources, Source, sources=named | changed)

  data = prepare(mix(), 'char', tmp_path / 'to', cache_dir, 10_000)
  assert 'α' in data.tokenizer.alphabet
  own = {name: spec.build(f"prepared('{tmp_path}/to/{name}')", sources, Source) for name in named}
  rows = []
  for one in (mix(), mix(**own), mix(greek=own['greek'])):  # texts, tokens, and both
    opened = open_text(one, 'char', cache_dir)
    assert opened.tokenizer == data.tokenizer and opened.corpus.hash == data.corpus.hash
    packed = spec.build('concat', packing, Packing).rows(opened.tokens('train'), 32, seed=0)
    rows.append([packed[i]['targets'] for i in range(40)])
  np.testing.assert_array_equal(rows[1], rows[0])
  np.testing.assert_array_equal(rows[2], rows[0])
  with pytest.raises(ValueError, match=r"to/greek'\) is prepared with the tokenizer 'char' \(char-"):
    open_text(own['greek'], 'bytes', cache_dir)
  prepare(source, 'char', tmp_path / 'alone', cache_dir)
  other = spec.build(f"prepared('{tmp_path}/alone')", sources, Source)
  with pytest.raises(
    ValueError, match='texts of mix.* is prepared with char-.*, and another source with char-'
  ):
    open_text(mix(greek=own['greek'], texts=other), 'char', cache_dir)


def test_a_trained_tokenizer_must_be_that_of_the_tokens(source, make_text, tmp_path, cache_dir):
  data = prepare(source, 'sentencepiece(400)', tmp_path / 'to', cache_dir)
  own = spec.build(f"prepared('{tmp_path}/to')", sources, Source)
  assert pipeline.open_text(own, data.tokenizer, cache_dir).tokenizer == data.tokenizer
  untrained = spec.build('sentencepiece(400)', tokenizers, Tokenizer)
  other = untrained.train(make_text(seed, 9) for seed in range(500, 700))
  for tokenizer in (other, Bytes()):
    with pytest.raises(ValueError, match='and this run has another; use that one'):
      pipeline.open_text(own, tokenizer, cache_dir)
  with pytest.raises(ValueError, match='and this run has another'):
    open_text(own, 'sentencepiece(500)', cache_dir)


@pytest.mark.parametrize(
  'damage, message',
  [
    (
      lambda to: (to / 'prepared.json').unlink(),
      'has no prepared.json, which tfm prepare --to=.* writes at its',
    ),
    (lambda to: (to / 'prepared.json').write_text('{'), 'cannot be read as a description of prepared tokens'),
    (
      lambda to: (to / 'prepared.json').write_text('{"version": 9}'),
      'it has version 9, and this program reads 1',
    ),
    (
      lambda to: (to / 'prepared.json').write_text('{"version": 1}'),
      'prepared.json cannot be read as .* KeyError',
    ),
    (
      lambda to: truncate(to / 'train' / 'text.ids-00001-of-00002'),
      r'ids-00001-of-00002 has [\d,]+ bytes and had',
    ),
    (
      lambda to: (to / 'test' / 'text.ids-00000-of-00001').unlink(),
      'test/text.ids-00000-of-00001 is missing',
    ),
    (
      lambda to: flip(to / 'train' / 'text.lengths-00000-of-00002'),
      'lengths-00000-of-00002 is not what was written',
    ),
  ],
)
def test_damage_is_named(damage, message, source, tmp_path, cache_dir):
  text = open_text(source, 'bytes', cache_dir)
  prepare(source, 'bytes', tmp_path / 'to', cache_dir, text.corpus.bytes['train'] // 2 + 1)
  own = spec.build(f"prepared('{tmp_path}/to')", sources, Source)
  open_text(own, 'bytes', cache_dir).tokens('train')
  damage(tmp_path / 'to')
  with pytest.raises(ValueError, match=message):
    open_text(own, 'bytes', cache_dir).tokens('train')


def truncate(path):
  path.write_bytes(path.read_bytes()[:-1])


def flip(path):
  data = bytearray(path.read_bytes())
  data[0] ^= 1
  path.write_bytes(data)


def test_a_file_that_ends_while_it_is_read_is_named(source, tmp_path, cache_dir):
  prepare(source, 'bytes', tmp_path / 'to', cache_dir)
  tokens = open_text(spec.build(f"prepared('{tmp_path}/to')", sources, Source), 'bytes', cache_dir).tokens(
    'train'
  )
  path = tmp_path / 'to' / 'train' / 'text.ids-00000-of-00001'
  path.write_bytes(path.read_bytes()[:10])
  with pytest.raises(ValueError, match='text.ids-00000-of-00001 ends before byte'):
    tokens.ids[:]


@pytest.mark.parametrize(
  'text, message',
  [
    (
      "numbers('en', 'de', pairs=100)",
      'cannot be prepared; tfm prepare takes texts, and pairs, that are read',
    ),
    ("labelled('a.tsv')", r"labelled\('a.tsv'\) cannot be prepared"),
    ('copy(examples=9)', 'cannot be prepared'),
    ('digits', 'cannot be prepared'),
  ],
)
def test_sources_that_cannot_be_prepared(text, message, tmp_path):
  with pytest.raises(ValueError, match=message):
    preparation.validate_preparation(spec.build(text, sources, Source), str(tmp_path / 'to'))


def test_pairs_are_said_to_be_pairs(source, tmp_path, cache_dir):
  prepare(source, 'bytes', tmp_path / 'to', cache_dir)
  with pytest.raises(ValueError, match=r'holds text; use prepared\(.*, pairs=False\)'):
    spec.build(f"prepared('{tmp_path}/to', pairs=True)", sources, Source).prepare(cache_dir)


@pytest.mark.parametrize('url', ['gs://bucket/folder', 'nothing://folder'])
def test_file_systems_that_are_not_there(url):
  with pytest.raises(ValueError, match=f'{url} cannot be opened: '):
    open_prepared(url)


@given(st.lists(st.tuples(st.sampled_from(SPLITS), st.text(max_size=3)), max_size=12), st.integers(0, 12))
def test_surveys_add_up(documents, cut):
  whole, parts = Survey(), [Survey(), Survey()]
  for index, document in enumerate(documents):
    whole.add(*document)
    parts[index < cut].add(*document)
  restored = [Survey.from_state(json.loads(json.dumps(part.state))) for part in parts]
  merged = restored[0].merge(restored[1])
  assert merged.hash == whole.hash and merged.state == whole.state
