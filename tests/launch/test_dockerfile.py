"""The Dockerfile by hadolint's rules; it copies what a wheel needs. No image is built here."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.test_wheel import SOURCES


BIN = pathlib.Path(sys.executable).parent
LINTER = shutil.which('hadolint', path=BIN) or shutil.which('hadolint')


@pytest.mark.slow
@pytest.mark.skipif(not LINTER, reason='needs hadolint: make launch')
def test_hadolint_finds_nothing(root, tmp_path):
  assert (
    subprocess.run([LINTER, root / 'Dockerfile'], capture_output=True, text=True, check=True).stdout == ''
  )
  worse = tmp_path / 'Dockerfile'
  worse.write_text((root / 'Dockerfile').read_text().replace('bookworm', 'bookworm\nRUN cd /'))
  assert 'DL3003' in subprocess.run([LINTER, worse], capture_output=True, text=True).stdout


def copied(root):
  """The files and folders that the Dockerfile copies."""
  lines = re.findall(r'^COPY (.*) \S+$', (root / 'Dockerfile').read_text(), re.MULTILINE)
  return {name for line in lines for name in line.split()}


def test_it_copies_what_a_wheel_needs_and_the_context_holds_that(root):
  assert {*SOURCES, 'constraints.txt', 'LICENSE'} == copied(root)
  included = {line[1:] for line in (root / '.dockerignore').read_text().splitlines() if line.startswith('!')}
  assert included == copied(root)


def test_every_image_is_pinned_and_runs_as_the_user_that_kubernetes_expects(root):
  text = (root / 'Dockerfile').read_text()
  stages = re.split(r'^FROM ', text, flags=re.MULTILINE)[1:]
  names = {stage.split()[2] for stage in stages}
  assert {'base', 'cpu', 'cuda', 'tpu'} == names
  for stage in stages:
    image, _, name = stage.split()[:3]
    assert image in names or re.fullmatch(r'python:\d+\.\d+\.\d+-\S+', image)
    if name != 'base':
      assert re.findall(r'^USER (.*)$', stage, re.MULTILINE) == ['1000']
      assert '--constraint constraints.txt' in stage
