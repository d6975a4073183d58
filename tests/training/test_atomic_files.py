"""A kill while a file is rewritten loses neither the old content nor the new one."""

import errno
import json
import os

import pytest

from tfm.errors import MachineFailure
from tfm.training.atomic_files import write_atomically
from tfm.training.metrics import MetricsLog, read


class Killed(Exception):
  pass


@pytest.fixture
def killed_in_the_write(monkeypatch):
  """The process dies after the new content is written and before it replaces the old one."""

  def die(_):
    raise Killed

  monkeypatch.setattr(os, 'fsync', die)


def test_the_old_content_is_intact(tmp_path, killed_in_the_write):
  (tmp_path / 'a.json').write_text('old')
  with pytest.raises(Killed):
    write_atomically(tmp_path / 'a.json', 'new')
  assert (tmp_path / 'a.json').read_text() == 'old'


def test_the_new_content_replaces_the_old_one(tmp_path):
  for text in ('old', 'new ⊕'):
    write_atomically(tmp_path / 'a.json', text)
  assert (tmp_path / 'a.json').read_text(encoding='utf-8') == 'new ⊕'
  assert [path.name for path in tmp_path.iterdir()] == ['a.json']


def test_a_full_disk_is_a_sentence_with_the_name_of_the_file(tmp_path, monkeypatch):
  def fill(_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', fill)
  with pytest.raises(
    MachineFailure, match='a.json.*No space left.*free some space and run the command again'
  ):
    write_atomically(tmp_path / 'a.json', 'new')


def test_a_resumed_run_killed_at_its_start_keeps_its_metrics(tmp_path, killed_in_the_write):
  rows = [dict(step=i, split='train', loss=1.0) for i in range(1, 9)]
  (tmp_path / 'metrics.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  with pytest.raises(Killed):
    MetricsLog(tmp_path, step=5)
  assert read(tmp_path / 'metrics.jsonl') == rows
