"""Checkpoints near at hand: what each process keeps for itself, on a disk or in the memory of its machine.

They are quick to write, and so may be written often; most of what ends a run (a preemption, a process that dies) leaves them
there. What takes a machine away takes its part, and the run goes on from the lasting checkpoints (Wang et al. 2023, Gemini).
"""

import functools
import json
import pathlib
import shutil
import struct
import uuid
from typing import Any

import jax
import orbax.checkpoint as ocp
from ml_collections import ConfigDict

from tfm.parallel import processes
from tfm.shapes import PyTree
from tfm.training.checkpoint import Checkpoints, rest, said_by_all
from tfm.training.progress import print_status
from tfm.training.state import State


MARK = 'near.json'  # in --workdir: the name of its folders
KEEP = 2  # a kill may come between the saves of two processes
NONE = -1  # no step


class LocalCheckpoints(Checkpoints):
  """The checkpoints of one run in `folder`, a folder of this machine's own, of every process those of its devices.

  A process writes all that its devices hold, copies of what others hold too, and reads nothing else: no process waits for the
  disk of another. Orbax writes them as its experimental emergency checkpoints do (`ArrayHandler(replica_id=None)`), without
  their want of several slices.

  Args:
    workdir: of the run. A new run in it does not find those of an old one.
  """

  write = ocp.args.PyTreeSave
  # The folders of another process say nothing of one's own: told so, Orbax would write before there is a place to write to.
  in_background = False

  @staticmethod
  def read(target: PyTree) -> ocp.args.PyTreeRestore:
    return ocp.args.PyTreeRestore(
      item=target, restore_args=ocp.checkpoint_utils.construct_restore_args(target)
    )

  def __init__(self, folder: str, workdir: pathlib.Path):
    alone = ocp.options.MultiprocessingOptions(
      primary_host=None, active_processes=set(range(jax.process_count())), barrier_sync_key_prefix='near'
    )
    registry = ocp.type_handlers.create_type_handler_registry(
      (
        jax.Array,
        ocp.type_handlers.ArrayHandler(primary_host=None, replica_id=None, use_replica_parallel=False),
      )
    )
    tree = functools.partial(
      ocp.PyTreeCheckpointHandler, multiprocessing_options=alone, type_handler_registry=registry
    )
    directory = pathlib.Path(folder).absolute() / named(workdir) / f'process_{jax.process_index()}'
    try:
      directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
      raise ValueError(
        f'config.training.local_checkpoint_dir={folder!r} cannot be written to here ({error}); a folder on a disk of each machine, '
        'or in its memory, such as /dev/shm, would do'
      ) from None
    self._open(
      directory,
      KEEP,
      dict(params=tree(), rest=tree(), run=ocp.JsonCheckpointHandler(multiprocessing_options=alone)),
      multiprocessing_options=alone,
      save_root_metadata=False,
    )

  def save(self, state: State, run: dict[str, Any], loss: float | None) -> None:
    """Begins to save; no checkpoint here is best, as none stays."""
    super().save(state, run | dict(layout=layout(run['config'])), None)

  def steps(self) -> list[int]:
    """Those that every process has."""
    mine, form = super().steps()[-KEEP - 1 :], f'>{KEEP + 1}q'
    every = processes.gather_bytes(struct.pack(form, *mine, *[NONE] * (KEEP + 1 - len(mine))))
    return sorted(set.intersection(*(set(struct.unpack(form, one)) for one in every)) - {NONE})

  def newer(self, last: int, config: ConfigDict) -> int | None:
    """The newest step, if it is after `last` and can be gone on from; what is in the way of that is told."""
    found = max(self.steps(), default=0)
    if found <= last:
      return None
    why = next((said for part in ('run', 'params', 'rest') if (said := self.damaged(found, part))), '')
    if not why:
      before, now = self.run(found)['layout'], layout(config.to_dict())
      changed = ', '.join(
        f'{name} {now[name]} and had {before[name]}' for name in now if now[name] != before[name]
      )
      why = said_by_all(changed and f'this run has {changed}')
    if why:
      print_status(
        f'the checkpoint {found} near at hand cannot be gone on from: {why}; it is deleted as the run goes on from step {last}'
      )
      return None
    return found

  def require_whole(self, state: State) -> None:
    """Refuses arrays of which Orbax would write a part: it takes the copy that the first device of a process has, and of an array
    that is cut otherwise over other devices of that process there may be no such copy.

    Raises:
      ValueError: in all processes, for what one finds.
    """

    def held(shards):
      return {str(shard.index) for shard in shards}

    partly = any(
      held(x.addressable_shards)
      != held(
        [shard for shard in x.addressable_shards if shard.replica_id == x.addressable_shards[0].replica_id]
      )
      for x in jax.tree.leaves((state.params, rest(state)))
    )
    if said := said_by_all(f'process {jax.process_index()} has parts of several copies' if partly else ''):
      raise ValueError(
        f'config.training.local_checkpoint_dir keeps one copy of what the devices of a process hold, and in this mesh {said}; a mesh whose '
        "inner axes are the devices of a process, or near='', would do"
      )

  def clear(self) -> None:
    """Deletes what is here, where a lasting checkpoint is newer or is gone on from."""
    self.wait()
    for step in self.directory.iterdir():
      shutil.rmtree(step)
    self.manager.reload()

  def _mine(self, files: dict[str, list]) -> dict[str, list]:
    return files


def layout(config: dict[str, Any]) -> dict[str, Any]:
  """What says which part of an array this process holds."""
  return {field: config[field] for field in ('mesh', 'slices', 'rules')} | dict(
    processes=jax.process_count(), devices=[device.id for device in jax.local_devices()]
  )


def named(workdir: pathlib.Path) -> str:
  """The name of a run's folders on all machines: the same as long as its --workdir is there and is not moved."""
  name = uuid.uuid4().hex
  if processes.is_main_process():  # another would read what is being written
    mark, place = workdir / MARK, str(workdir.absolute())
    before = json.loads(mark.read_text()) if mark.is_file() else {}
    if before.get('workdir') == place:
      name = before['name']
    else:
      workdir.mkdir(parents=True, exist_ok=True)
      mark.write_text(json.dumps(dict(workdir=place, name=name)))
  return processes.gather_bytes(name.encode())[0].decode()
