"""Prefetching: the state belongs to the yielded batch, not to the prefetched ones."""

import itertools
import json
import os
import socket
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tfm.data import device_prefetch, pipeline
from tfm.data.packing.concat import Concat
from tfm.data.row_share import RowShare


@pytest.fixture
def rows(make_tokens):
  return Concat().rows(make_tokens([5, 40, 3, 17]), 8, seed=0)


@pytest.fixture
def mesh():
  return jax.make_mesh((jax.device_count(),), ('data',))


@pytest.mark.parametrize('size', (1, 2, 5))
def test_batches_come_in_order_with_the_state_after_each(rows, mesh, size):
  sharding = NamedSharding(mesh, P('data'))
  expected = [pipeline.Batches(rows, RowShare.all(16))[k] for k in range(12)]
  fetched = list(
    itertools.islice(device_prefetch.prefetch(pipeline.train_iterator(rows, 16), sharding, 16, size), 8)
  )
  for received, batch in zip(fetched, expected):
    assert received.batch['inputs'].sharding == sharding and received.batch['inputs'].shape == (16, 8)
    for field, value in batch.items():
      np.testing.assert_array_equal(jax.device_get(received.batch[field]), value)
    assert received.hash == pipeline.batch_hash(batch)
  for stop in (0, 3, 7):
    iterator = pipeline.train_iterator(rows, 16)
    iterator.set_state(json.loads(json.dumps(fetched[stop].state)))
    resumed = device_prefetch.prefetch(iterator, sharding, 16, size)
    assert next(resumed).hash == pipeline.batch_hash(expected[stop + 1])
    resumed.close()


def test_a_finite_iterator_yields_all_batches(make_tokens, mesh):
  rows = Concat().evaluation_rows(make_tokens([100, 50]), 8)
  batches = device_prefetch.prefetch(pipeline.evaluation_batches(rows, 8), NamedSharding(mesh, P()), 8)
  assert sum(int((b.host['segments'] > 0).sum()) for b in batches) == 152


def test_transfers_are_explicit(rows, mesh):
  batches = device_prefetch.prefetch(pipeline.train_iterator(rows, 16), NamedSharding(mesh, P('data')), 16)
  with jax.transfer_guard('disallow'):
    assert next(batches).batch['inputs'].shape == (16, 8)
    with pytest.raises(Exception, match='[Dd]isallow'):  # the guard is awake
      jax.numpy.sin(np.ones(3)).block_until_ready()
  batches.close()


def test_the_iterator_is_closed(rows, mesh):
  closed = []
  iterator = pipeline.train_iterator(rows, 16)
  close = iterator.close
  iterator.close = lambda: (closed.append(True), close())
  batches = device_prefetch.prefetch(iterator, NamedSharding(mesh, P('data')), 16)
  next(batches)
  assert not closed
  batches.close()
  assert closed


def test_an_iterator_of_other_rows_is_rejected(rows, mesh, make_shares):
  sharding, share = NamedSharding(mesh, P('data')), make_shares(16, 2, 'tiles')[0]
  with pytest.raises(
    ValueError, match="reads 8 rows, and this process's devices hold 16 rows of batch_size=16"
  ):
    next(device_prefetch.prefetch(pipeline.train_iterator(rows, 16, share), sharding, 16))
  with pytest.raises(ValueError, match='size=0'):
    device_prefetch.prefetch(pipeline.train_iterator(rows, 16), sharding, 16, size=0)


PROGRAM = textwrap.dedent("""
  import sys
  import jax
  import numpy as np
  from jax.sharding import NamedSharding, PartitionSpec as P
  from tfm.data import device_prefetch, pipeline, tokens
  from tfm.data.packing.concat import Concat
  from tfm.data.row_share import process_share
  port, index, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
  if count > 1:
    jax.distributed.initialize(f'localhost:{port}', count, index)
  # The processes' devices take turns, as the hosts of a torus do.
  devices = sorted(jax.devices(), key=lambda device: (device.id % 2, device.id))
  sharding = NamedSharding(jax.sharding.Mesh(devices, ('data',)), P('data'))
  ids = np.arange(500, dtype=np.uint32)
  made = tokens.Tokens('made up', ids, np.arange(0, 501, 20), eos_id=1000, bytes=500)
  share = process_share(sharding, 8)
  assert count == 1 or share.spans == [(2 * index, 2 * index + 2), (2 * index + 4, 2 * index + 6)], share
  iterator = pipeline.train_iterator(Concat().rows(made, 16, 0), 8, share)
  batches = device_prefetch.prefetch(iterator, sharding, 8)
  for _ in range(3):
    fetched = next(batches)
    assert fetched.batch['inputs'].shape == (8, 16)
    for shard in fetched.batch['targets'].addressable_shards:
      rows = range(*shard.index[0].indices(8))
      mine = fetched.host['targets'][np.isin(fetched.share.rows, rows)]
      np.testing.assert_array_equal(np.asarray(shard.data), mine)
    print(fetched.hash, fetched.state)
  batches.close()
""")


def run(count: int) -> list[list[str]]:
  with socket.socket() as free:
    free.bind(('localhost', 0))
    port = str(free.getsockname()[1])
  environment = {
    **os.environ,
    'XLA_FLAGS': f'{os.environ["XLA_FLAGS"]} --xla_force_host_platform_device_count=2',
  }
  processes = [
    subprocess.Popen(
      [sys.executable, '-c', PROGRAM, port, str(index), str(count)],
      stdout=subprocess.PIPE,
      text=True,
      env=environment,
    )
    for index in range(count)
  ]
  outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
  assert not any(process.returncode for process in processes)
  return outputs


@pytest.mark.slow
def test_two_processes_read_the_batches_of_one():
  [one], two = run(1), run(2)
  assert len(one) == 3
  for line, parts in zip(one, zip(*two, strict=True), strict=True):
    whole, state = line.split(' ', 1)
    hashes, states = zip(*(part.split(' ', 1) for part in parts))
    assert pipeline.add_hashes(hashes) == whole and set(states) == {state}
