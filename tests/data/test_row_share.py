"""Which rows each process reads: those of its devices, wherever they lie in the batch."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tfm.data.row_share import RowShare, process_shares


def shares_of(owners, shape=(8,), axes=('data',), spec=P('data'), batch_size=16):
  """Shares of the processes that own the devices of a mesh, in its order."""
  mesh = jax.make_mesh(shape, axes)
  owner = {device.id: process for device, process in zip(mesh.devices.flat, owners, strict=True)}
  return process_shares(NamedSharding(mesh, spec), batch_size, lambda device: owner[device.id])


@pytest.mark.parametrize(
  'owners, expected',
  [
    ([0] * 8, {0: [(0, 16)]}),
    ([0, 0, 0, 0, 1, 1, 1, 1], {0: [(0, 8)], 1: [(8, 16)]}),
    # Hosts of a torus hold tiles: on v5e:4x4 the rows of a host lie in two spans.
    ([0, 0, 1, 1, 0, 0, 1, 1], {0: [(0, 4), (8, 12)], 1: [(4, 8), (12, 16)]}),
    ([0, 1, 2, 2, 2, 2, 1, 0], {0: [(0, 2), (14, 16)], 1: [(2, 4), (12, 14)], 2: [(4, 12)]}),
    ([0, 0, 0, 1, 1, 1, 1, 1], {0: [(0, 6)], 1: [(6, 16)]}),  # unequal hosts
  ],
)
def test_each_process_reads_the_rows_of_its_devices(owners, expected):
  shares = shares_of(owners)
  assert {process: share.spans for process, share in shares.items()} == expected
  assert sorted(np.concatenate([share.rows for share in shares.values()])) == list(range(16))
  assert all(share.counted.all() for share in shares.values())
  assert all(share.is_complete == (len(shares) == 1) for share in shares.values())


def test_processes_that_share_rows_read_the_same_and_the_first_counts_them():
  owners = [0, 1, 0, 1, 2, 3, 2, 3]  # tensor parallelism between processes 0 and 1, and between 2 and 3
  shares = shares_of(owners, (4, 2), ('data', 'tensor'))
  assert [shares[i].spans for i in range(4)] == [[(0, 8)], [(0, 8)], [(8, 16)], [(8, 16)]]
  assert [bool(shares[i].counted.all()) for i in range(4)] == [True, False, True, False]
  assert not any(shares[i].counted.any() for i in (1, 3)) and not shares[0].is_complete


def test_rows_that_overlap_in_part_are_counted_once():
  shares = shares_of([0, 1, 1, 2, 2, 3, 3, 0], (4, 2), ('data', 'tensor'), batch_size=4)
  counted = np.concatenate([share.rows[share.counted] for share in shares.values()])
  assert sorted(counted) == list(range(4)) and any(0 < s.counted.sum() < len(s.rows) for s in shares.values())


def test_where_every_process_holds_all_rows_each_counts_them():
  """Each then knows the sums of the batch without a message."""
  shares = shares_of([0, 0, 0, 0, 1, 1, 1, 1], (8,), ('tensor',), P())
  assert all(
    share.is_complete and share.counted.all() and share.spans == [(0, 16)] for share in shares.values()
  )


def test_a_sharded_length_does_not_change_the_rows():
  shares = shares_of([0, 1] * 4, (2, 4), ('data', 'length'), P('data', 'length'), batch_size=4)
  assert shares[0].spans == shares[1].spans == [(0, 4)]


def test_a_single_process_reads_and_counts_all_rows():
  share = RowShare.all(5)
  assert share.spans == [(0, 5)] and share.counted.tolist() == [True] * 5 and share.is_complete


def test_a_batch_of_more_rows_is_shared_in_the_same_proportion():
  share = shares_of([0, 1] * 4, batch_size=8)[1]
  assert share.scale(24).rows.tolist() == [3, 4, 5, 9, 10, 11, 15, 16, 17, 21, 22, 23]
  assert share.scale(8) is share and share.scale(24).counted.all() and not share.scale(24).is_complete
  owners = [0, 1, 0, 1, 2, 3, 2, 3]
  shares = shares_of(owners, (4, 2), ('data', 'tensor'), batch_size=4)
  assert [shares[i].scale(8).counted.tolist() for i in (0, 1)] == [[True] * 4, [False] * 4]
  assert share.of_host(dict(x=np.zeros((12, 5)))).batch_size == 24
  with pytest.raises(ValueError, match='a batch has 12 rows, not a multiple of batch_size=8'):
    share.scale(12)
  with pytest.raises(
    ValueError, match="reads 5 rows, and this process's devices hold 4 rows of batch_size=8"
  ):
    share.of_host(dict(x=np.zeros((5, 5))))


def test_rows_are_placed_where_the_sharding_wants_them():
  mesh = jax.make_mesh((4, 2), ('data', 'length'))
  x = np.arange(16 * 6).reshape(16, 6)
  for spec in (P('data'), P('data', 'length'), P(None, 'length'), P()):
    placed = RowShare.all(16).place(
      dict(x=x, y=x[:, 0]) if len(spec) < 2 else dict(x=x), NamedSharding(mesh, spec)
    )
    for value in placed.values():
      np.testing.assert_array_equal(value, x if value.ndim == 2 else x[:, 0])
