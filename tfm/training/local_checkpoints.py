"""Local checkpoints: each process saves its own shards on a disk, or in the memory, of its machine.

They are quick to write and can be written often; they survive a preemption or the death of a process. If a
machine is lost its part is lost, and the run resumes from the shared checkpoints (Wang et al. 2023, Gemini).
"""

import functools
import json
import pathlib
import shutil
import uuid
from collections.abc import Iterable
from typing import Any

import jax
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from tfm.errors import read_json_object
from tfm.parallel import processes
from tfm.training.atomic_files import write_atomically
from tfm.training.checkpoint import Checkpoints, gather_first_message, state_without_params, tree_handler
from tfm.training.progress_line import print_status
from tfm.training.state import State


NAME_FILE = 'near.json'  # in --workdir: the name of the run's local folders
KEEP = 2  # a kill may come between the saves of two processes


class LocalCheckpoints(Checkpoints):
  """The checkpoints of one run in `folder` of this machine; each process has those of its devices.

  A process writes one copy of all that its devices hold, and reads nothing else: no process waits for the
  disk of another. Orbax writes them as its experimental emergency checkpoints
  (`ArrayHandler(replica_id=None)`), but without requiring several slices.

  Args:
    workdir: of the run. A new run there does not find the local checkpoints of an old one.
  """

  # Each process has its own directories, so a signal from process 0 would not mean that those of this process
  # exist.
  creates_directories_async = False

  def __init__(self, folder: str, workdir: pathlib.Path):
    alone = ocp.options.MultiprocessingOptions(
      primary_host=None, active_processes=set(range(jax.process_count())), barrier_sync_key_prefix='near'
    )
    whole = ocp.type_handlers.ArrayHandler(primary_host=None, replica_id=None, use_replica_parallel=False)
    tree = functools.partial(tree_handler, whole, multiprocessing_options=alone)
    directory = pathlib.Path(folder).absolute() / run_folder_name(workdir) / f'process_{jax.process_index()}'
    try:
      directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise ValueError(
        f'config.training.local_checkpoint_dir={folder!r} is not writable ({error}); use a folder on a disk '
        'of each machine, '
        'or in its memory, such as /dev/shm'
      ) from None
    self._open(
      directory,
      KEEP,
      dict(params=tree(), rest=tree(), run=ocp.JsonCheckpointHandler(multiprocessing_options=alone)),
      multiprocessing_options=alone,
      save_root_metadata=False,
    )

  def save(self, state: State, run: dict[str, Any], loss: float | None) -> None:
    """Starts to save in the background; none is the best, because local checkpoints are temporary."""
    super().save(state, run | dict(layout=device_layout(run['config'])), None)

  def steps(self) -> list[int]:
    """The complete steps that every process has, in order."""
    every = processes.gather_bytes(json.dumps(super().steps()).encode())
    return sorted(set.intersection(*(set(json.loads(steps)) for steps in every)))

  def find_newer(self, last: int, config: ConfigDict) -> int | None:
    """The newest step after `last` from which training can resume; prints why it cannot from newer ones."""
    newer = [step for step in reversed(self.steps()) if step > last]
    for step, before in zip(newer, [*newer[1:], last]):
      if not (reason := self._find_reason_against(step, config)):
        return step
      print_status(f'cannot resume from local checkpoint {step}: {reason}; trying step {before}')
    return None

  def _find_reason_against(self, step: int, config: ConfigDict) -> str:
    """Why training cannot resume from a step; ''."""
    for part in ('run', 'params', 'rest'):
      if damage := self.find_damage(step, part):
        return damage
    before, now = self.read_metadata(step)['layout'], device_layout(config.to_dict())
    changed = ', '.join(
      f'{name} {now[name]}, saved with {before[name]}' for name in now if now[name] != before[name]
    )
    return gather_first_message(changed and f'this run has {changed}')

  def require_complete_copies(self, state: State) -> None:
    """Refuses arrays that Orbax would save in part only.

    Orbax saves the replica of a process's first device; if an array is sharded such that the process's
    devices hold shards of several replicas, this one may be incomplete.

    Raises:
      ValueError: in all processes, if it is so in one.
    """

    def indices(shards):
      return {str(shard.index) for shard in shards}

    is_partial = any(
      indices(x.addressable_shards)
      != indices(
        [shard for shard in x.addressable_shards if shard.replica_id == x.addressable_shards[0].replica_id]
      )
      for x in jax.tree.leaves((state.params, state_without_params(state)))
    )
    if message := gather_first_message(
      f'process {jax.process_index()} has parts of several copies' if is_partial else ''
    ):
      raise ValueError(
        'config.training.local_checkpoint_dir saves one copy of what the devices of a process hold, and in '
        f'this mesh {message}; use a '
        "mesh whose inner axes are the devices of a process, or config.training.local_checkpoint_dir=''"
      )

  def clear(self) -> None:
    """Deletes all local checkpoints, when a shared one replaces them."""
    self.wait()
    self._delete(self.directory.iterdir())

  def delete_after(self, step: int) -> None:
    """Deletes those of later steps, also what only this process has."""
    self._delete(self.directory / str(later) for later in super().steps() if later > step)

  def _delete(self, folders: Iterable[pathlib.Path]) -> None:
    for folder in folders:
      shutil.rmtree(folder)
    self.manager.reload()

  def _digested_parts(self, folder):
    return {}  # a process has all files of its folder

  def _own_files(self, files: dict[str, list]) -> dict[str, list]:
    return files


def device_layout(config: dict[str, Any]) -> dict[str, Any]:
  """The fields and devices that determine which part of an array this process holds."""
  return {field: config[field] for field in ('mesh', 'slices', 'rules')} | dict(
    processes=jax.process_count(), devices=[device.id for device in jax.local_devices()]
  )


def run_folder_name(workdir: pathlib.Path) -> str:
  """The name of a run's folders on all machines; it stays the same until --workdir is deleted or moved."""
  name = uuid.uuid4().hex
  if processes.is_main_process():  # one process reads and writes the file
    path, location = workdir / NAME_FILE, str(workdir.absolute())
    try:
      before = read_json_object(path, "the name of a run's local checkpoints") if path.is_file() else {}
    except ValueError as error:  # torn by a kill
      print_status(f'{error}; the local checkpoints of this run have another name from now on')
      before = {}
    if before.get('workdir') == location and isinstance(before.get('name'), str):
      name = before['name']
    else:
      workdir.mkdir(parents=True, exist_ok=True)
      write_atomically(path, json.dumps(dict(workdir=location, name=name)))
  return processes.gather_bytes(name.encode())[0].decode()
