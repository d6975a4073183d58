"""Apache Beam writes the same bytes as one process; `make beam` runs this in an environment that has it."""

import importlib.util
import json

import pytest

from tfm import spec
from tfm.commands import cli
from tfm.data import pipeline, preparation, sources
from tfm.data.sources.protocol import Source
from tfm.data.sources.text import Text
from tfm.data.token_shards import Storage
from tfm.data.tokenizers.char import Char
from tfm.data.tokenizers.sentencepiece import SentencePiece


INSTALLED = importlib.util.find_spec('apache_beam') is not None
if INSTALLED:
  from tfm.data.beam_engine import BeamEngine

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not INSTALLED, reason='needs Apache Beam, which `make beam` installs'),
]
WORKERS = '--direct_num_workers=2', '--direct_running_mode=multi_processing'


@pytest.fixture(scope='module')
def texts(make_text, tmp_path_factory):
  """A folder with files of texts, of which some are copies, and some empty."""
  folder = tmp_path_factory.mktemp('texts')
  documents = [make_text(seed, 1 + seed % 7) for seed in range(240)] + ['', '', *['twice, thrice'] * 5]
  for part in range(3):
    lines = (json.dumps(dict(text=text)) + '\n' for text in documents[part::3])
    (folder / f'{part}.jsonl').write_text(''.join(lines))
  (folder / '3.txt').write_text('twice, thrice')
  return folder


@pytest.fixture(scope='module')
def pairs(make_text, tmp_path_factory):
  """The spec of pairs."""
  folder = tmp_path_factory.mktemp('pairs')
  for side in 'ab':
    (folder / side).write_text('\n'.join(f'{side}{i} ' + make_text(i, 1).strip() for i in range(300)) + '\n')
  return f'parallel({str(folder / "a")!r}, {str(folder / "b")!r})'


def prepare(source, tokenizer, to, engine, cache_dir):
  data = pipeline.train_tokenizers(source.open_corpus(engine.store), tokenizer, cache_dir)
  preparation.prepare_tokens(data, dict.fromkeys(source.fields, 'the tokenizer'), str(to), engine)
  engine.close()


def contents(folder):
  return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def assert_same_files(source, tokenizer, options, tmp_path, shard_bytes=4000):
  engines = {
    'one': preparation.InProcess(tmp_path / 'cache', shard_bytes),
    'many': BeamEngine(Storage(f'{tmp_path}/many/.beam'), options, shard_bytes),
  }
  for name, engine in engines.items():
    # Each with its own cache, so that each trains the tokenizer.
    prepare(source, tokenizer, tmp_path / name, engine, tmp_path / f'cache of {name}')
  one, many = (contents(tmp_path / name) for name in engines)
  assert sorted(many) == sorted(one)
  for name in one:
    assert many[name] == one[name], name
  return one


def test_workers_write_the_bytes_of_one_process(texts, tmp_path):
  files = assert_same_files(Text(f'{texts}/*'), SentencePiece(400), WORKERS, tmp_path)
  assert sum(name.startswith('train/text.ids') for name in files) > 5


def test_a_mixture_of_which_the_tokenizer_is_trained(texts, tmp_path):
  (tmp_path / 'book.txt').write_text(''.join(f'αβγ {i}\n\n' for i in range(3000)))  # divided into pieces
  named = dict(book=Text(f'{tmp_path}/book.txt'), texts=Text(f'{texts}/*'))
  mixture = spec.build('mix(book=0.1, texts=0.9)', sources, Source, sources=named)
  files = assert_same_files(mixture, Char(), (), tmp_path)
  assert {'book/prepared.json', 'texts/prepared.json'} <= set(files)


def test_pairs_in_many_shards(pairs, tmp_path):
  files = assert_same_files(spec.build(pairs, sources, Source), Char(), (), tmp_path, shard_bytes=20)
  sizes = [len(data) for name, data in files.items() if name.startswith('train/source.ids')]
  assert len(sizes) > 500 and 0 in sizes


def test_the_command(texts, tmp_path):
  (tmp_path / 'config.py').write_text('def get_config(arg=""):\n  return {}\n')
  command = ['prepare', f'--config={tmp_path}/config.py', f"--config.data.source=text('{texts}/*')"]
  assert cli.main([*command, f'--to={tmp_path}/one']) == 0
  assert cli.main([*command, f'--to={tmp_path}/many', '--beam_runner=DirectRunner']) == 0
  assert contents(tmp_path / 'many') == contents(tmp_path / 'one')


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--beam_runner=DirectRuner'], 'DirectRuner'),
    (
      ['--beam_runner=DirectRunner', '--beam_options=--direct_num_worker=2'],
      "did you mean 'direct_num_workers'",
    ),
    (['--beam_options=--direct_num_workers=2'], 'requires --beam_runner=NAME'),
  ],
)
def test_flags_that_are_rejected(flags, message, texts, tmp_path, capsys):
  (tmp_path / 'config.py').write_text('def get_config(arg=""):\n  return {}\n')
  command = ['prepare', f'--config={tmp_path}/config.py', f"--config.data.source=text('{texts}/*')"]
  assert cli.main([*command, f'--to={tmp_path}/to', *flags]) == 2
  [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith('tfm prepare: ')]
  assert message in line


def test_a_text_that_cannot_be_read_is_one_sentence(tmp_path):
  (tmp_path / 'a.txt').write_bytes(b'\xff')
  engine = BeamEngine(Storage(f'{tmp_path}/to/.beam'), ())
  with pytest.raises(
    ValueError, match=r'^.*/a.txt is not UTF-8 \(byte 0: invalid start byte\); convert it first$'
  ):
    Text(f'{tmp_path}/a.txt').open_corpus(engine.store)
  (tmp_path / 'b.txt').write_bytes(b'')
  with pytest.raises(ValueError, match=r"b.txt'\) is empty: it has no text at all"):
    Text(f'{tmp_path}/b.txt').open_corpus(engine.store)


def test_a_source_that_changes_while_it_is_read_is_rejected(make_text, tmp_path, monkeypatch):
  path = tmp_path / 'a.jsonl'
  path.write_text(''.join(json.dumps(dict(text=make_text(seed, 3))) + '\n' for seed in range(200)))
  engine = BeamEngine(Storage(f'{tmp_path}/to/.beam'), ())
  plain = BeamEngine._survey

  def survey(self, documents, rule):
    found = plain(self, documents, rule)
    path.write_text(path.read_text() + json.dumps(dict(text='more')) + '\n')
    return found

  monkeypatch.setattr(BeamEngine, '_survey', survey)
  with pytest.raises(ValueError, match=r"a.jsonl'\) changed while it was read; run again when"):
    Text(str(path)).open_corpus(engine.store)
