"""Ring attention over sharded rows equals attention on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.kernels.on_mesh import ALL_QUERIES, RULES, call_on_mesh, function_on_mesh
from tfm.analysis.collectives import find_collectives
from tfm.conformance import collect
from tfm.conformance.test_kernels import CASES, DROPPED, TOLERANCE, call, close
from tfm.kernels import ring
from tfm.kernels.ring import RingPlan, RingSizes
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


QUICK = 'multi-head', 'learned score', 'sinks', 'packed layout', 'whole'


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
  'sizes', [dict(sequence=2, data=2, tensor=2), dict(sequence=4, data=2)], ids=['zigzag', 'straight']
)
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name in ALL_QUERIES
    if CASES[name].has_blockwise_bias
  ],
)
def test_equals_dense_on_one_device(name, sizes):
  close(
    call_on_mesh(sizes, 'ring(queries=2, keys=3)', CASES[name]),
    call('dense', CASES[name]),
    TOLERANCE['float32'],
  )


def test_rejects_lengths_and_dropout_that_it_cannot_shard():
  with pytest.raises(ValueError, match='8 devices share a row, which do not divide 12 queries and 12 keys'):
    call_on_mesh(dict(sequence=8), 'ring', CASES['multi-head'])
  with pytest.raises(ValueError, match='2 devices share a row, which do not divide 3 queries and 12 keys'):
    call_on_mesh(dict(sequence=2, data=-1), 'ring', CASES['few queries'])
  with pytest.raises(ValueError, match='its dropout over sharded rows would differ'):
    call_on_mesh(dict(sequence=2, data=-1), 'ring', DROPPED['dropout'])


@pytest.mark.parametrize('devices', [2, 4, 8])
def test_zigzag_is_used_if_it_balances_the_work(devices):
  """Zigzag gives all devices half the blocks of a causal mask; under a full mask it is not used."""
  plans = {
    zigzag: RingPlan.in_order(
      collect.mask('causal'), 'contiguous', RingSizes(256, 256, devices, 4, 4), zigzag
    )
    for zigzag in (False, True)
  }
  assert RingPlan.best(collect.mask('causal'), 'contiguous', RingSizes(256, 256, devices, 4, 4)).zigzag
  assert not RingPlan.best(collect.mask('full'), 'contiguous', RingSizes(256, 256, devices, 4, 4)).zigzag
  assert not RingPlan.best(collect.mask('causal'), 'arbitrary', RingSizes(256, 256, devices, 4, 4)).zigzag
  all_blocks = (64 // devices) * 64
  by_device = plans[True].key_visits.starts[..., -1].sum(1)
  assert by_device.min() == by_device.max() and plans[True].work / all_blocks < 0.5 + 1 / devices
  assert plans[False].work / all_blocks > 1 - 1 / devices
  # Together the devices visit each visible block once.
  assert (
    plans[True].key_visits.starts[..., -1].sum()
    == plans[False].key_visits.starts[..., -1].sum()
    == 64 * 65 // 2
  )


def test_zigzag_exchange_and_its_inverse():
  mesh, x = meshes.make(dict(sequence=8)), jnp.arange(32).reshape(1, 32)
  exchange = functools.partial(ring.exchange_zigzag, 'sequence', 8)

  @jax.jit
  def exchange_once(x):
    return run(lambda me, x: exchange(me[0], x))(x)

  @jax.jit
  def exchange_and_invert(x):
    return run(lambda me, x: exchange(me[0], exchange(me[0], x), back=True))(x)

  def run(f):
    PartitionSpec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(
      f,
      in_specs=(PartitionSpec('sequence'), PartitionSpec(None, 'sequence')),
      out_specs=PartitionSpec(None, 'sequence'),
      axis_names={'sequence'},
      check_vma=False,
    )
    return lambda x: mapped(jnp.arange(8), x)

  with jax.set_mesh(mesh):
    np.testing.assert_array_equal(
      exchange_once(x)[0], np.concatenate([ring.token_indices(32, 8, i, True) for i in range(8)])
    )
    np.testing.assert_array_equal(exchange_and_invert(x), x)


@pytest.mark.parametrize('devices', [pytest.param(2, marks=pytest.mark.slow), 4])
def test_keys_are_sent_to_every_other_device_once(devices):
  """In either pass with their values, positions and segments; the gradients of both come home."""
  sizes = dict(sequence=devices, data=-1)
  run, arguments = function_on_mesh('ring', CASES['both ways'])
  with sharding.context(meshes.make(sizes), RULES):
    text = run.lower(*arguments).compile().as_text()
  [count] = [
    found.count for found in find_collectives(text, meshes.make(sizes).shape) if found.axes == ('sequence',)
  ]
  assert count == 2 * 4 * (devices - 1) + 2 * devices
