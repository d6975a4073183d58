"""Several runs of one shape trained in one step, their states and batches stacked: seeds of one config, learning rates.

Each does what it would do alone; what is gained is that they are compiled once, and that small runs fill the devices.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tfm.data import pipeline
from tfm.data.device import DeviceBatch
from tfm.parallel import mesh as meshes
from tfm.shapes import Array, PyTree
from tfm.training.state import State


RUNS = 'runs'  # the mesh axis


@dataclasses.dataclass(frozen=True, eq=False)
class EnsembleBatch(DeviceBatch):
  """The batches of all runs, stacked.

  Attributes:
    host: of the first run; hosts: of every run.
  """

  hosts: tuple[pipeline.Batch, ...] = ()

  @property
  def hashes(self):
    return tuple(map(pipeline.batch_hash, self.hosts))


def make_mesh(runs: int, devices: Sequence[jax.Device]) -> Mesh:
  """As many devices as divide the runs, each with equally many of them; the ordinary axes have one device."""
  count = max(n for n in range(1, len(devices) + 1) if runs % n == 0)
  axes = (RUNS, *meshes.AXES)
  return jax.make_mesh(
    (count, *[1] * len(meshes.AXES)), axes, axis_types=(AxisType.Auto,) * len(axes), devices=devices[:count]
  )


def stacked_sharding(where: Mesh) -> NamedSharding:
  """Of what has an axis of runs in front."""
  return NamedSharding(where, PartitionSpec(RUNS))


def stack_states(states: Sequence[State], where: Mesh) -> State:
  """One state of all runs, each leaf [runs, …]."""
  return jax.jit(
    lambda *states: jax.tree.map(lambda *x: jnp.stack(x), *states), out_shardings=stacked_sharding(where)
  )(*states)


def data_mesh(where: Mesh) -> Mesh:
  """The same devices for one run at a time: rows of a batch are divided among them."""
  return meshes.make(dict(data=-1), where.devices.flatten())


def split_states(runs: int, where: Mesh) -> Callable[[State], list[State]]:
  """State of all runs → the state of each, on every device of an ordinary mesh."""

  def one(state):
    return [jax.tree.map(lambda x: x[run], state) for run in range(runs)]

  return jax.jit(one, out_shardings=NamedSharding(where, PartitionSpec()))


def runs_vmapped(where: Mesh) -> bool:
  """Whether a device does its runs in products that are made for all of them: not a core of a CPU, which has nothing idle
  that these could fill, and in whose cache one run fits better than many.
  """
  return where.devices.flat[0].platform != 'cpu'


def ensemble_step(
  one: Callable[[State, PyTree, Array], tuple[State, PyTree]], where: Mesh, numbers: Array
) -> Callable[[State, PyTree], tuple[State, PyTree]]:
  """The step of all runs, of that of one: every device does its own, `runs_vmapped` or one after another.

  Args:
    one: (state, batch, the run's own number) → (state, metrics); numbers: one a run.
  """

  def one_by_one(*runs):
    return jax.lax.map(lambda run: one(*run), runs)

  some = jax.vmap(one) if runs_vmapped(where) else one_by_one
  axis = PartitionSpec(RUNS)
  mapped = jax.shard_map(some, mesh=where, in_specs=axis, out_specs=axis, axis_names={RUNS}, check_vma=False)
  return lambda state, batch: mapped(state, batch, numbers)


def prefetch(iterators: Sequence[grain.DatasetIterator], where: Mesh) -> Iterator[EnsembleBatch]:
  """The stacked batches of the runs' iterators on the devices; the iterators are closed at the end.

  Raises:
    ValueError: if the runs' batches are not of one shape.
  """
  try:
    for hosts in zip(*iterators):
      if len(shapes := {x.shape for host in hosts for name, x in host.items() if name == 'segments'}) > 1:
        raise ValueError(
          f'runs that train together need batches of one shape, and these are of {sorted(shapes)}; train '
          'them one after another'
        )
      batch = {
        name: jax.device_put(np.stack([host[name] for host in hosts]), stacked_sharding(where))
        for name in hosts[0]
      }
      yield EnsembleBatch(batch, iterators[0].get_state(), hosts[0], 0, hosts=hosts)
  finally:
    for iterator in iterators:
      iterator.close()
