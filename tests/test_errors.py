"""The boundary to files of others: whatever a parser raises is one sentence that names the file."""

import json
import os

import pytest

import tfm.masks
from tfm import spec
from tfm.analysis import variant_catalogue
from tfm.config.load import load_config
from tfm.conformance import collect
from tfm.data import files
from tfm.errors import FileError, MachineFailure, abridge, parsing, read_json_object, writing
from tfm.studies.study import Study, load_study


@pytest.mark.parametrize(
  'error, reason',
  [
    (KeyError('a'), "KeyError: 'a'"),
    (RecursionError('maximum recursion depth exceeded'), 'RecursionError: maximum recursion depth'),
    (ValueError('math domain error'), ': math domain error'),
    (RuntimeError(), ': RuntimeError'),
    (MemoryError(), ': MemoryError'),
    (ValueError('first\nsecond'), ': first'),
    (SystemExit(0), 'SystemExit: 0'),
  ],
)
def test_any_error_names_the_file(error, reason):
  with pytest.raises(FileError) as caught, parsing('a.json', 'a thing'):
    raise error
  message = str(caught.value)
  assert message.startswith('a.json cannot be read as a thing: ') and reason in message
  assert '\n' not in message and len(message) < 400


@pytest.mark.parametrize(
  'error', [FileError('b: bad'), ValueError('a.json:3 is no row'), FileNotFoundError('x')]
)
def test_errors_that_name_a_file_pass(error):
  with pytest.raises(type(error), match=str(error)), parsing('a.json', 'a thing'):
    raise error


def test_long_messages_are_cut_in_their_middle():
  path = '/a' * 140
  assert abridge(f'{path} is missing') == f'{path} is missing'
  for message in (f"x='{'y' * 10**6}' is long", 'many words ' * 10_000):
    short = abridge(message)
    assert (
      len(short) < 1000 and '…' in short and short.startswith(message[:20]) and short[-5:] == message[-5:]
    )


@pytest.mark.parametrize('content', ['', '[]', '3', '{', '[' * 100_000, '{"a": NaN', '{"a": 1, "a": 2}'])
def test_json_that_is_no_object(tmp_path, content):
  (tmp_path / 'a.json').write_text(content)
  with pytest.raises(FileError, match='a.json cannot be read as a JSON object: '):
    read_json_object(tmp_path / 'a.json')


@pytest.mark.parametrize(
  'text, reason',
  [
    ('def get_config(arg) return 5', 'cannot be read as Python that defines get_config'),
    ('import no_such_package_at_all', 'ModuleNotFoundError'),
    ('1 / 0', 'ZeroDivisionError'),
    ('raise SystemExit(0)', 'SystemExit: 0'),
    ('def get_config(arg): return {"model.width": 8}', "returns a name with dots, 'model.width'; nest it"),
    (
      'import ml_collections\ndef get_config(arg):\n  c = ml_collections.ConfigDict()\n  c.x = c\n  return c',
      'returns a config that contains itself',
    ),
    ('get_config = 5', r'defines no get_config\(arg\)'),
    (
      'def get_config(arg): return 5',
      r'returns a value of type int; get_config\(arg\) must return a ConfigDict',
    ),
    ('def get_config(arg): return {}[arg]', r"get_config\('big'\): KeyError: 'big'"),
  ],
)
def test_config_files(tmp_path, text, reason):
  (tmp_path / 'a.py').write_text(text)
  with pytest.raises(ValueError, match=f'a.py.*{reason}'):
    load_config(f'{tmp_path}/a.py:big')


def test_a_variant_that_ends_the_process_is_refused(tmp_path, monkeypatch):
  (tmp_path / 'quits.py').write_text('raise SystemExit(0)')
  monkeypatch.setattr(tfm.masks, '__path__', [*tfm.masks.__path__, str(tmp_path)])
  with pytest.raises(FileError, match='quits.py cannot be read as a variant of masks: SystemExit: 0'):
    spec.find_variant('quits', *collect.SLOTS['mask'])


def test_study_files(tmp_path):
  (tmp_path / 'a.py').write_text('def get_study(arg): return 5')
  with pytest.raises(ValueError, match=r'a.py: get_study\(arg\) returns a value of type int, not a Study'):
    load_study(f'{tmp_path}/a.py')


@pytest.mark.parametrize(
  'field, reason',
  [
    (
      'model.feed_forward_widht',
      ": config.model.feed_forward_widht is not a field; .*did you mean 'feed_forward_width'",
    ),
    ('model', ': config.model is a section'),
    ('model.dtype', ' is not a size'),
    ('optimizer.learning_rate', ' is not a size'),
  ],
)
def test_the_matched_field_of_a_study(field, reason):
  settings = dict(
    question='?', config={}, arms=dict(a={}, b={'model.layers': 1}), base='a', match='parameters'
  )
  assert Study(**settings)
  with pytest.raises(ValueError, match=f'matched_field={field!r}{reason}'):
    Study(**settings, matched_field=field)


def test_a_broken_variant_breaks_itself_alone(tmp_path, monkeypatch, capsys):
  (tmp_path / 'broken.py').write_text('class Broken(Mask)\n')
  monkeypatch.setattr(tfm.masks, '__path__', [*tfm.masks.__path__, str(tmp_path)])
  with pytest.raises(spec.SpecError, match="'zzz', which masks does not have; known: .*broken"):
    spec.find_variant('zzz', *collect.SLOTS['mask'])
  with pytest.raises(spec.SpecError, match='; one of your own needs --variants=FOLDER$'):
    spec.find_variant('zzz', *collect.SLOTS['mask'])
  with pytest.raises(
    spec.SpecError, match="; one of your own needs --variants=FOLDER; did you mean 'causal'"
  ):
    spec.find_variant('causl', *collect.SLOTS['mask'])
  with pytest.raises(FileError, match=r'broken.py cannot be read as a variant of masks: SyntaxError'):
    spec.find_variant('broken', *collect.SLOTS['mask'])
  names = [variant.name for variant in variant_catalogue.variants('mask')]
  assert 'causal' in names and 'broken' not in names
  assert 'left out: ' in capsys.readouterr().err
  assert 'broken' in collect.variants('mask') and collect.examples('mask', 'broken') == ()


def test_a_pipe_is_no_text(tmp_path):
  os.mkfifo(tmp_path / 'x.txt')
  with pytest.raises(ValueError, match='x.txt is not a regular file'):
    list(files.read_chunks(tmp_path / 'x.txt'))


def test_json_lines_nested_too_deeply(tmp_path, make_jsonl_source):
  (tmp_path / 'x.jsonl').write_text(json.dumps(dict(text='a')) + '\n' + '[' * 100_000 + '\n')
  with pytest.raises(ValueError, match='x.jsonl:2 is not JSON'):
    make_jsonl_source(tmp_path / 'x.jsonl').prepare(tmp_path / 'cache')


@pytest.fixture
def make_jsonl_source():
  from tfm.data.sources.text import Text

  return lambda path: Text(str(path))


def test_a_full_disk_is_a_failure_of_the_machine_that_names_the_file():
  message = '^/dev/full cannot be written: No space left on device; wait$'
  with pytest.raises(MachineFailure, match=message), writing('/dev/full', 'wait'):
    with open('/dev/full', 'w') as file:
      file.write('x')
