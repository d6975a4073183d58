"""A checkpoint is located in a local folder or on the hub."""

import pathlib

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from tfm.hf import pretrained


def test_owner_and_name_is_downloaded(monkeypatch, tmp_path):
  (tmp_path / 'config.json').write_text('{}')
  downloads = []

  def snapshot_download(name, allow_patterns):
    downloads.append(name)
    files = [
      pathlib.PurePath(file)
      for file in (
        'config.json',
        'model-00001-of-00002.safetensors',
        'model.safetensors.index.json',
        'vocab.txt',
        'spiece.model',
        'pytorch_model.bin',
        'tf_model.h5',
      )
    ]
    assert [any(file.match(pattern) for pattern in allow_patterns) for file in files] == [True] * 5 + [
      False
    ] * 2
    return str(tmp_path)

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', snapshot_download)
  assert pretrained.locate_checkpoint('owner/name') == tmp_path and downloads == ['owner/name']
  (tmp_path / 'config.json').unlink()
  with pytest.raises(ValueError, match='owner/name has no config.json'):
    pretrained.locate_checkpoint('owner/name')


def test_local_paths_are_not_downloaded(monkeypatch, tmp_path):
  monkeypatch.setattr(
    huggingface_hub, 'snapshot_download', lambda *args, **kwargs: pytest.fail('called the hub')
  )
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'models' / 'mine').mkdir(parents=True)
  for path in ('models/mine', './mine', '../mine', '/models/mine', '~/no-models/mine', 'mine', 'a/b/c'):
    with pytest.raises(ValueError, match='has no config.json'):
      pretrained.locate_checkpoint(path)
  (tmp_path / 'models' / 'mine' / 'config.json').write_text('{}')
  assert pretrained.locate_checkpoint('models/mine') == pathlib.Path('models/mine')


@pytest.mark.parametrize(
  'error',
  [
    LocalEntryNotFoundError('Got: ConnectError: no route to host\nAn error happened.\nTry again.'),
    OSError(101, 'Network is unreachable'),
    TimeoutError(),
  ],
)
def test_a_failed_download_is_reported_in_one_sentence(error, monkeypatch, tmp_path):
  def snapshot_download(name, **kwargs):
    raise error

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', snapshot_download)
  monkeypatch.chdir(tmp_path)
  with pytest.raises(
    ValueError, match='owner/name is no local folder, and its download from the hub failed: .'
  ) as raised:
    pretrained.locate_checkpoint('owner/name')
  assert '\n' not in str(raised.value)
