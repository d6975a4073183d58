"""The wheel, built from the sdist, works alone: with configs, studies and the conformance suite."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.test_extras import OPTIONAL


pytestmark = pytest.mark.slow
SOURCES = 'tfm', 'configs', 'experiments', 'setup.cfg', 'setup.py', 'pyproject.toml', 'README.md'
BUILD = 'import setuptools.build_meta as backend; print(backend.build_{}({!r}))'


def build(kind, source, target):
  """Builds 'sdist' or 'wheel' of a source tree; returns the file."""
  subprocess.run(
    [sys.executable, '-c', BUILD.format(kind, str(target))], cwd=source, check=True, capture_output=True
  )
  [file] = target.glob('*.whl' if kind == 'wheel' else '*.tar.gz')
  return file


@pytest.fixture(scope='module')
def site(root, tmp_path_factory):
  """A folder with the content of the wheel, as an installation puts it among other packages."""
  folder = tmp_path_factory.mktemp('wheel')
  source = folder / 'source'
  source.mkdir()
  for name in SOURCES:
    copy = shutil.copytree if (root / name).is_dir() else shutil.copy
    copy(root / name, source / name)
  with tarfile.open(build('sdist', source, folder)) as archive:
    archive.extractall(folder / 'unpacked', filter='data')
  [source] = (folder / 'unpacked').iterdir()
  with zipfile.ZipFile(build('wheel', source, folder)) as archive:
    archive.extractall(folder / 'site')
  return folder / 'site'


def files(folder):
  """The paths of a folder's files, without compiled ones."""
  paths = (path.relative_to(folder) for path in folder.rglob('*') if path.is_file())
  return {path.as_posix() for path in paths if '__pycache__' not in path.parts}


def test_it_holds_every_file_of_the_package_and_no_other_package(root, site):
  expected = {f'tfm/{name}' for name in files(root / 'tfm')}
  for name in ('configs', 'experiments'):
    expected |= {f'tfm/{name}/{file}' for file in files(root / name)}
  assert {'tfm/py.typed', 'tfm/conformance/check.ini', 'tfm/configs/lm.py'} <= expected
  found = {name for name in files(site) if '.dist-info' not in name}
  assert found == expected, (sorted(expected - found), sorted(found - expected))


def tfm(site, folder, *words):
  """Runs a command of the wheel in a folder."""
  environment = {name: value for name, value in os.environ.items() if not name.startswith('TFM_')}
  process = subprocess.run(
    [sys.executable, '-m', 'tfm', *words],
    capture_output=True,
    text=True,
    cwd=folder,
    env=environment | {'PYTHONPATH': f'{site}{os.pathsep}{folder}', 'HOME': str(folder)},
  )
  assert process.returncode == 0, process.stderr
  return process.stdout + process.stderr


def test_its_configs_train_by_name(site, tmp_path):
  listed = tfm(site, tmp_path, 'configs')
  assert '  lm ' in listed and '  position ' in listed
  (tmp_path / 'mine.py').write_text(tfm(site, tmp_path, 'configs', 'lm'))
  assert str(site) in tfm_file(site, tmp_path)
  for config in ('lm:smoke', './mine.py:smoke'):
    output = tfm(site, tmp_path, 'train', f'--config={config}', f'--workdir={pathlib.Path(config).stem}')
    assert 'step 4  validation' in output
  assert 'position' in tfm(site, tmp_path, 'ablate', 'position:demo', '--workdir=study', '--dry_run')


def tfm_file(site, folder):
  command = [sys.executable, '-c', 'import tfm; print(tfm.__file__)']
  return subprocess.run(
    command, capture_output=True, text=True, cwd=folder, env=os.environ | {'PYTHONPATH': str(site)}
  ).stdout


def test_its_conformance_suite_checks_a_file_without_other_extras(site, tmp_path):
  hidden = dict.fromkeys(name for name in OPTIONAL if name != 'pytest')
  (tmp_path / 'sitecustomize.py').write_text(f'import sys\nsys.modules.update({hidden})\n')
  (tmp_path / 'norms').mkdir()
  text = (site / 'tfm' / 'norms' / 'rmsnorm.py').read_text()
  (tmp_path / 'norms' / 'mine.py').write_text(text)
  output = tfm(site, tmp_path, 'check', 'norms/mine.py', '--quick')
  assert ' passed' in output and 'failed' not in output
