"""What each of several processes reads and writes to save a checkpoint: its own share."""

import json
import pathlib
import socket
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path('/proc/self/io').exists(), reason='the system does not count bytes')
def test_each_process_writes_and_verifies_its_share(root, tmp_path):
  with socket.socket() as free:
    free.bind(('localhost', 0))
    port = free.getsockname()[1]
  count, megabytes = 3, 192
  program = [sys.executable, str(root / 'tests' / 'training' / 'measure_save.py')]
  started = [
    subprocess.Popen(
      [*program, *map(str, (port, count, i, megabytes, tmp_path))],
      stdout=subprocess.PIPE,
      text=True,
      cwd=root,
    )
    for i in range(count)
  ]
  results = [json.loads(process.communicate(timeout=300)[0].splitlines()[-1]) for process in started]
  for result in results:
    for kind in ('read', 'written'):
      # Zstandard makes random numbers a little smaller.
      assert 0.8 * result['share'] < result[kind] < 1.1 * result['share'], results
