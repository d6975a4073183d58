"""A Python process without what the shell or pytest set."""

import pathlib
import subprocess
import sys

from tests.paths import ROOT


def run_bare(folder: pathlib.Path, code: str, *arguments: str) -> subprocess.CompletedProcess:
  """Runs code of which only this clone is on the path, in a folder that is its home; it must succeed."""
  process = subprocess.run(
    [sys.executable, '-c', code, *arguments],
    capture_output=True,
    text=True,
    cwd=folder,
    env={'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', 'HOME': str(folder), 'PATH': '/usr/bin:/bin'},
  )
  assert process.returncode == 0, process.stderr
  return process
