"""Connecting processes, and what they exchange; whole runs of several are in tests/runs/test_processes.py."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest

from tfm.parallel import processes


# Two processes gather records while their devices compute a step of seconds with collectives.
GATHERING = textwrap.dedent("""
  import sys
  import jax
  import jax.numpy as jnp
  from jax.sharding import NamedSharding, PartitionSpec
  from tfm.parallel import mesh, processes

  index = int(sys.argv[1])
  processes.connect('train', '2', index, sys.argv[2], None, None)
  assert processes.gather_bytes(bytes(index)) == [b'', b'\\0']
  rows = NamedSharding(mesh.make(dict(data=-1), jax.devices()), PartitionSpec('data'))
  x = jax.jit(lambda: jnp.ones((4, 512, 512)) / 512, out_shardings=rows)()
  step = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda i, x: x @ x + 0 * x.sum(), x))
  step(x).block_until_ready()
  y = step(x)
  assert processes.gather_bytes(b'loss of ' + bytes([48 + index])) == [b'loss of 0', b'loss of 1']
  assert not y.is_ready(), 'gathering waited for the step'
  y.block_until_ready()
  processes.require_equal(dict(a=1))
""")


@pytest.mark.slow
def test_gathering_does_not_wait_for_the_devices(root):
  with socket.socket() as free:
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
  env = os.environ | dict(XLA_FLAGS='--xla_force_host_platform_device_count=2', PYTHONPATH=str(root))
  started = [
    subprocess.Popen(
      [sys.executable, '-c', GATHERING, str(i), address], env=env, text=True, stderr=subprocess.PIPE
    )
    for i in range(2)
  ]
  errors = [process.communicate(timeout=300)[1] for process in started]
  assert [process.returncode for process in started] == [0, 0], errors


@pytest.mark.parametrize(
  'flags, expected_message',
  [
    (('two', None, None, 60, 300), '--processes=two must be a number of processes'),
    (('2', None, 'localhost:1', 60, 300), '--process=None is not below --processes=2'),
    (('2', 2, 'localhost:1', 60, 300), '--process=2 is not below --processes=2'),
    (('2', 0, 'localhost', 60, 300), '--coordinator=localhost must be HOST:PORT'),
    (('1', 0, None, None, None), '--processes=1 takes neither'),
    (('2', 0, 'localhost:1', 0, 300), '--heartbeat_timeout=0 must be at least 1'),
    (('1', None, None, 10, None), '--heartbeat_timeout=10 needs several processes'),
    (('1', None, None, None, 10), '--connect_timeout=10 needs several processes'),
  ],
)
def test_flags_that_make_no_sense(flags, expected_message):
  with pytest.raises(ValueError, match=expected_message):
    processes.connect('train', *flags)


def test_alone_all_is_as_ever():
  assert processes.is_main_process() and processes.gather_bytes(b'one') == [b'one']
  processes.barrier()
  processes.require_equal(dict(anything=1))
  with pytest.raises(KeyError), processes.abort_all_on_error('train', (ValueError,)):
    raise KeyError
