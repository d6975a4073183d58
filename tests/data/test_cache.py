"""The cache: directories are complete or absent, also with several writers."""

import errno
import os
import pathlib
import subprocess
import sys

import pytest

from tfm.data import cache
from tfm.errors import MachineFailure


def test_a_directory_is_written_once(tmp_path):
  calls = []

  def write(path):
    calls.append(path)
    (path / 'a').write_text('1')

  for _ in range(2):
    assert (cache.create_once(tmp_path / 'x' / 'y', write) / 'a').read_text() == '1'
  assert len(calls) == 1 and calls[0] != tmp_path / 'x' / 'y'


def test_a_failed_write_leaves_nothing(tmp_path):
  def write(path):
    (path / 'a').write_text('half')
    raise KeyError('stop')

  with pytest.raises(KeyError):
    cache.create_once(tmp_path / 'x', write)
  assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_sentence(tmp_path):
  """TFDS reports it as an error of its own."""

  def write(path):
    try:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
      raise RuntimeError('Failed to finalize writing of split "test"') from error

  with pytest.raises(
    MachineFailure, match=f'{tmp_path} cannot be written: No space left on device; .*TFM_CACHE'
  ):
    cache.create_once(tmp_path / 'x', write)
  assert not list(tmp_path.iterdir())


def test_the_slower_of_two_writers_reads_the_result_of_the_faster(tmp_path):
  def write(path):
    (path / 'a').write_text('loser')
    cache.create_once(tmp_path / 'x', lambda faster: (faster / 'a').write_text('winner'))

  assert (cache.create_once(tmp_path / 'x', write) / 'a').read_text() == 'winner'
  assert [path.name for path in tmp_path.iterdir()] == ['x']


@pytest.mark.parametrize(
  'damage, message',
  [
    (lambda x: (x / 'ids').write_bytes(b'1235'), r'ids has the SHA-256 .* and had '),
    (lambda x: (x / 'ids').write_bytes(b'123'), r'ids has 3 bytes and had 4'),
    (lambda x: (x / 'ids').unlink(), 'ids is missing'),
    (lambda x: (x / 'digests.json').unlink(), 'digests.json is missing'),
    (lambda x: (x / 'digests.json').write_text('{}'), 'digests.json is missing or empty'),
    (lambda x: (x / 'digests.json').write_text('{'), 'digests.json cannot be read'),
    (lambda x: (x / 'more').write_text(''), 'digests.json does not list more'),
  ],
)
def test_altered_files_are_not_read(tmp_path, damage, message):
  def read():
    return cache.create_once(tmp_path / 'x', lambda path: (path / 'ids').write_bytes(b'1234'))

  assert read() == read()
  damage(tmp_path / 'x')
  with pytest.raises(ValueError, match=message):
    read()


@pytest.mark.slow
def test_several_processes_prepare_one_cache(tmp_path, make_text):
  (tmp_path / 'a.txt').write_text(make_text(0, 3000), newline='')
  program = f"""
from tfm.data import pipeline
from tfm.data.sources.text import Text
from tfm.data.tokenizers.char import Char
text = pipeline.open_text(Text('{tmp_path}/a.txt'), Char(), '{tmp_path}/cache')
print(text.corpus.hash, text.tokenizer.identity, len(text.tokens('train').ids))
"""
  processes = [
    subprocess.Popen([sys.executable, '-c', program], stdout=subprocess.PIPE, text=True) for _ in range(3)
  ]
  outputs = {process.communicate(timeout=300)[0] for process in processes}
  assert len(outputs) == 1 and outputs != {''} and not any(process.returncode for process in processes)
  assert not [path for path in pathlib.Path(tmp_path, 'cache').rglob('.*')]  # no parts left


def test_the_default_follows_the_environment(monkeypatch, tmp_path):
  monkeypatch.setenv('TFM_CACHE', str(tmp_path))
  assert cache.directory() == tmp_path
  monkeypatch.delenv('TFM_CACHE')
  assert cache.directory() == pathlib.Path.home() / '.cache' / 'tfm'
