"""Several runs of one shape trained in one step: their states and batches are stacked along the mesh axis
`runs`.

The runs differ in seed and learning rate only. Each computes what it computes alone; they compile once, and
small runs fill the devices. `SingleRun` and `Ensemble` have the same methods, so that a trainer treats both
alike.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tfm.data import device_prefetch, pipeline
from tfm.data.device_prefetch import DeviceBatch
from tfm.data.row_share import RowShare
from tfm.parallel import mesh as meshes
from tfm.parallel.compiler_options import Options
from tfm.shapes import Array, PyTree
from tfm.training.state import State
from tfm.training.step import jitted


# (state, batch) → (state, metrics)
Step = Callable[[State, PyTree], tuple[State, PyTree]]

RUNS = 'runs'  # the mesh axis


@dataclasses.dataclass(frozen=True)
class SingleRun:
  """One run on its mesh.

  Attributes:
    mesh: of the step; data_mesh: of a validation batch, the same.
  """

  mesh: Mesh

  @property
  def data_mesh(self) -> Mesh:
    return self.mesh

  def combine(self, states: Sequence[State]) -> State:
    """The state that the step takes."""
    (state,) = states
    return state

  def build_split_fn(self) -> Callable[[State], Sequence[State]]:
    """A function: the state that the step takes → the state of each run."""
    return lambda state: (state,)

  def jit_step(self, build_step: Callable[[Array | None], Step], shardings: State, options: Options) -> Step:
    """The compiled step.

    Args:
      build_step: peak learning rate, or None for the config's → the step of one run.
      shardings: of the state.
      options: of the compiler.
    """
    return jitted(build_step(None), shardings, options)

  def prefetch(
    self, iterators: Sequence[grain.DatasetIterator], sharding: NamedSharding, batch_size: int
  ) -> Iterator[DeviceBatch]:
    """Batches on the devices."""
    return device_prefetch.prefetch(*iterators, sharding, batch_size)


@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble:
  """Several runs in one step; the methods are those of `SingleRun`.

  Attributes:
    mesh: with the axis `runs`; data_mesh: the same devices, for a validation batch of one run.
    learning_rates: [runs], the peak of each.
  """

  mesh: Mesh
  data_mesh: Mesh
  learning_rates: np.ndarray

  @classmethod
  def on_devices(cls, learning_rates: np.ndarray, devices: Sequence[jax.Device]) -> 'Ensemble':
    mesh = make_mesh(len(learning_rates), devices)
    return cls(mesh, data_mesh(mesh), learning_rates)

  def combine(self, states: Sequence[State]) -> State:
    return stack_states(states, self.mesh)

  def build_split_fn(self) -> Callable[[State], Sequence[State]]:
    return split_states(len(self.learning_rates), self.data_mesh)

  def jit_step(self, build_step: Callable[[Array | None], Step], shardings: State, options: Options) -> Step:
    def one(state, batch, peak):
      return build_step(peak)(state, batch)

    return jitted(ensemble_step(one, self.mesh, self.learning_rates), stacked_sharding(self.mesh), options)

  def prefetch(
    self, iterators: Sequence[grain.DatasetIterator], sharding: NamedSharding, batch_size: int
  ) -> Iterator[DeviceBatch]:
    return prefetch(iterators, self.mesh)


@dataclasses.dataclass(frozen=True, eq=False)
class EnsembleBatch(DeviceBatch):
  """The stacked batches of all runs.

  Attributes:
    host: this process's rows of the first run; hosts: of every run.
  """

  hosts: tuple[pipeline.Batch, ...] = ()

  @property
  def hashes(self):
    return tuple(map(pipeline.batch_hash, self.hosts))


def make_mesh(runs: int, devices: Sequence[jax.Device]) -> Mesh:
  """A mesh of as many devices as divide the number of runs; every axis but `runs` has size 1."""
  count = max(n for n in range(1, len(devices) + 1) if runs % n == 0)
  axes = (RUNS, *meshes.AXES)
  return jax.make_mesh(
    (count, *[1] * len(meshes.AXES)), axes, axis_types=(AxisType.Auto,) * len(axes), devices=devices[:count]
  )


def stacked_sharding(mesh: Mesh) -> NamedSharding:
  """The sharding of an array [runs, …]."""
  return NamedSharding(mesh, PartitionSpec(RUNS))


def stack_states(states: Sequence[State], mesh: Mesh) -> State:
  """One state of all runs, each leaf [runs, …]."""
  return jax.jit(
    lambda *states: jax.tree.map(lambda *x: jnp.stack(x), *states), out_shardings=stacked_sharding(mesh)
  )(*states)


def data_mesh(mesh: Mesh) -> Mesh:
  """A mesh of the same devices for one run at a time, which splits the rows of a batch over them."""
  return meshes.make(dict(data=-1), mesh.devices.flatten())


def split_states(runs: int, mesh: Mesh) -> Callable[[State], list[State]]:
  """A function: state of all runs → the state of each, replicated over a mesh without the axis `runs`."""

  def split(state):
    return [jax.tree.map(lambda x: x[run], state) for run in range(runs)]

  return jax.jit(split, out_shardings=NamedSharding(mesh, PartitionSpec()))


def runs_vmapped(platform: str) -> bool:
  """Whether a device computes its runs in one vmapped step rather than one after another.

  Not on a CPU: a core has no idle units to fill, and its cache holds one run better than many.
  """
  return platform != 'cpu'


def ensemble_step(
  one: Callable[[State, PyTree, Array], tuple[State, PyTree]], mesh: Mesh, numbers: Array
) -> Step:
  """The step of all runs, from the step of one: each device computes its own runs.

  Args:
    one: (state, batch, the run's number) → (state, metrics).
    numbers: [runs], such as learning rates.
  """

  def one_by_one(*runs):
    return jax.lax.map(lambda run: one(*run), runs)

  local_step = jax.vmap(one) if runs_vmapped(mesh.devices.flat[0].platform) else one_by_one
  axis = PartitionSpec(RUNS)
  mapped = jax.shard_map(
    local_step, mesh=mesh, in_specs=axis, out_specs=axis, axis_names={RUNS}, check_vma=False
  )
  return lambda state, batch: mapped(state, batch, numbers)


def prefetch(iterators: Sequence[grain.DatasetIterator], mesh: Mesh) -> Iterator[EnsembleBatch]:
  """The stacked batches of the runs' iterators on the devices; closes the iterators at the end.

  Raises:
    ValueError: if the runs' batches differ in shape.
  """
  try:
    for hosts in zip(*iterators):
      if len(shapes := {x.shape for host in hosts for name, x in host.items() if name == 'segments'}) > 1:
        raise ValueError(
          f'the batches of an ensemble must have one shape, and these have {sorted(shapes)}; '
          'train the runs one after another'
        )
      batch = {
        name: jax.device_put(np.stack([host[name] for host in hosts]), stacked_sharding(mesh))
        for name in hosts[0]
      }
      share = RowShare.all(len(hosts[0]['segments']))
      yield EnsembleBatch(batch, iterators[0].get_state(), hosts[0], share, hosts)
  finally:
    for iterator in iterators:
      iterator.close()
