"""Checkpoints, by Orbax: all that a run needs to resume bit for bit."""

import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from tfm import variant_folders
from tfm.data import file_hashes
from tfm.errors import parsing, read_json_object, writing
from tfm.parallel import processes
from tfm.shapes import PyTree
from tfm.training.progress_line import print_status
from tfm.training.state import State


RESUMES = 'free some space and run the command again: it resumes from the last checkpoint'

# What Orbax logs and is not shown: expected warnings (of a read-only manager, of a checkpoint without
# metrics, and of one that each process writes for itself, whose global size is not logged), and tracebacks of
# its threads, whose errors the next call raises.
HIDDEN_RECORDS = (
  'read only',
  'read_only=True',
  'tracked_metric',
  'Global object size logging disabled',
  '_SignalingThread.run() raised',
  'in background save thread',
  'Save Finalize thread',
  'async_serialize_from_host',
)
for name in ('absl', 'asyncio'):
  logging.getLogger(name).addFilter(
    lambda record: not any(text in record.getMessage() for text in HIDDEN_RECORDS)
  )


# The parts of a checkpoint that are trees of arrays.
TREES = 'params', 'rest'
# Replicas share the writing of an array if each has so many bytes to write: to cut arrays of one shape, a
# program is compiled.
MIN_SLICE_BYTES = 2**20


class DamagedCheckpoint(ValueError):
  """A file of a checkpoint differs from what was saved."""


class Checkpoints:
  """The checkpoints of one run: atomic, written in the background; the last few and the best are retained.

  One checkpoint holds `params`, `rest` (optimizer, step, key, loss scale: apart, so that evaluation
  reads half) and `run`, JSON: the data iterator's state, the tokenizer, the resolved config, the
  corpus hash. "Best" is the lowest validation loss. The digests of its files are written before a checkpoint
  is renamed to its final name, and files are verified against them when they are read.
  """

  # Whether directories are created in the background, too; process 0 then signals the other processes.
  creates_directories_async = True

  def __init__(self, workdir: pathlib.Path, keep: int | None = None):
    """Opens the checkpoints of `workdir`; `keep=None` opens them read-only."""
    slices = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=MIN_SLICE_BYTES)
    trees = {part: digest_own_files(tree_handler(slices)) for part in TREES}
    self._open(
      pathlib.Path(workdir).absolute() / 'checkpoints', keep, trees | dict(run=ocp.JsonCheckpointHandler())
    )

  def _open(self, directory: pathlib.Path, keep: int | None, handlers: Mapping, **options) -> None:
    keeps = policies.AnyPreservationPolicy(
      [
        policies.LatestN(keep),
        policies.BestN(get_metric_fn=_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False),
      ]
    )
    self.directory = directory
    if keep:
      directory.mkdir(parents=True, exist_ok=True)
    # Orbax reads the losses when it opens them, and would not name a damaged one.
    for path in directory.glob('*/metrics/metrics'):
      read_json_object(path, "a checkpoint's loss")
    self.manager = ocp.CheckpointManager(
      directory,
      item_handlers=handlers,
      options=ocp.CheckpointManagerOptions(
        best_fn=_loss,
        best_mode='min',
        preservation_policy=keeps if keep else None,
        create=False,
        read_only=keep is None,
        cleanup_tmp_directories=keep is not None,
        enable_async_checkpointing=keep is not None,
        async_options=ocp.options.AsyncOptions(
          post_finalization_callback=self._write_digests,
          create_directories_asynchronously=self.creates_directories_async,
        )
        if keep
        else None,
        **options,
      ),
    )
    self._intact, self._saving = {}, None

  def save(self, state: State, run: dict[str, Any], loss: float | None) -> None:
    """Starts to save in the background; the checkpoint appears when it is complete."""
    self.wait()  # `_saving` is used until the earlier save is done
    self._saving = int(state.step)
    with self._writing():
      self.manager.save(
        self._saving,
        metrics=None if loss is None else {'loss': loss},
        force=True,
        args=ocp.args.Composite(
          params=ocp.args.PyTreeSave(state.params),
          rest=ocp.args.PyTreeSave(state_without_params(state)),
          run=ocp.args.JsonSave(run | dict(step=self._saving)),
        ),
      )

  def save_params(self, params: PyTree, run: dict[str, Any]) -> None:
    """Saves imported parameters as step 0, from which training cannot resume."""
    self._saving = 0
    with self._writing():
      self.manager.save(
        0, force=True, args=ocp.args.Composite(params=ocp.args.PyTreeSave(params), run=ocp.args.JsonSave(run))
      )

  def find_step(self, which: str) -> int:
    """The step that 'last', 'best' or a number names.

    Raises:
      ValueError: if there is no such checkpoint; it lists the existing ones.
    """
    steps = self.steps()
    if not steps:
      raise ValueError(f'{self.directory} holds no checkpoint; train first')
    if which == 'last':
      return steps[-1]
    if which == 'best':
      best = self.manager.best_step()
      if best is None:
        raise ValueError(f"step='best' requires an evaluated checkpoint; existing steps: {steps}")
      return best
    if not str(which).isdigit() or int(which) not in steps:
      raise ValueError(f"step={which!r} does not exist; use 'last', 'best' or one of {steps}")
    return int(which)

  def steps(self) -> list[int]:
    """The complete steps, in order."""
    return sorted(self.manager.all_steps())

  def latest_step(self) -> int | None:
    """The last complete step, or None."""
    return self.manager.latest_step()

  def read_metadata(self, step: int) -> dict[str, Any]:
    """The JSON part `run` of a checkpoint.

    Raises:
      DamagedCheckpoint: if it is damaged, or its folder was renamed.
      ValueError: if the run used a variant from outside the package that is not here.
    """
    self.require_intact(step, 'run')
    metadata = self._restore(step, run=ocp.args.JsonRestore())['run']
    saved = metadata.pop('step', step)  # earlier versions did not write it
    if saved != step:
      raise DamagedCheckpoint(f'{self.directory / str(step)} was saved as step {saved}; rename it to {saved}')
    variant_folders.require_available(metadata.get('variants', {}), str(self.directory.parent))
    return metadata

  def restore_params(self, step: int, target: PyTree) -> PyTree:
    """The parameters, with the shapes, dtypes and shardings of `target`."""
    self.require_intact(step, 'params')
    return self._restore(step, params=restore_args(target))['params']

  def restore_averaged_params(self, step: int, count: int, target: PyTree) -> PyTree:
    """The mean of the parameters of the last `count` checkpoints up to `step` (Vaswani et al. 2017, §6.1).

    Raises:
      ValueError: if there are fewer.
    """
    steps = [s for s in self.steps() if s <= step][-count:]
    if len(steps) < count:
      raise ValueError(
        f'--average={count} requires {count} checkpoints up to step {step}; existing steps: {steps}; '
        'use --average=1 for the last one alone'
      )
    mean = self.restore_params(steps[0], target)
    for i, s in enumerate(steps[1:], start=2):
      mean = jax.tree.map(lambda m, x: m + (x - m) / i, mean, self.restore_params(s, target))
    return mean

  def restore_state(self, step: int, target: State) -> State:
    """The whole state, under the shardings of `target`, whatever mesh it was saved from."""
    for part in ('params', 'rest'):
      self.require_intact(step, part)
    restored = self._restore(
      step, params=restore_args(target.params), rest=restore_args(state_without_params(target))
    )
    leaves = jax.tree.leaves(restored['rest'])
    # Orbax returns containers as dictionaries; the structure is the target's.
    others = jax.tree.unflatten(jax.tree.structure(state_without_params(target)), leaves)
    return target.replace(params=restored['params'], **others)

  def _restore(self, step: int, **parts: Any) -> Any:
    """The parts of a checkpoint; one that lost its digests may be damaged in any way."""
    with parsing(self.directory / str(step), 'a checkpoint'):
      return self.manager.restore(step, args=ocp.args.Composite(**parts))

  def require_intact(self, step: int, part: str) -> None:
    """Raises if a part of a checkpoint is damaged.

    Raises:
      DamagedCheckpoint: naming the file, and the checkpoint to resume from.
    """
    if message := self.find_damage(step, part):
      folder, before = self.directory / str(step), [other for other in self.steps() if other < step]
      raise DamagedCheckpoint(
        f'{message}; '
        + (
          f'the previous checkpoint is {before[-1]}: --step={before[-1]} reads it, and training resumes '
          'from it after '
          f'{folder} is deleted'
          if before
          else 'there is no earlier one, and training starts from step 0 after its folder is deleted'
        )
      )

  def find_damage(self, step: int, part: str) -> str:
    """A message on the first damaged file of a part of a checkpoint, or ''. Intact parts are verified once.

    Each process verifies some of the files; all return the same message. A checkpoint without digests, as of
    earlier versions, is not verified, and a notice says so.
    """
    if (step, part) in self._intact:
      return ''
    folder = self.directory / str(step)
    try:
      expected = file_hashes.read_digests(folder)
      if not (folder / part).is_dir():
        damage = f'{folder} lacks its folder {part}'
      elif expected is None:
        print_status(f'{folder} has no {file_hashes.FILE}: its {part} is read without verification')
        damage = ''
      else:
        files = {name: digest for name, digest in expected.items() if name.startswith(f'{part}/')}
        damage = file_hashes.find_unlisted(folder, files, part)
        damage = damage or file_hashes.find_damage(folder, self._own_files(files))
    except ValueError as error:  # the other processes must get this message, too
      damage = str(error)
    if damage := gather_first_message(damage):
      return f'the checkpoint {step} in {self.directory} is damaged: {damage}'
    self._intact[step, part] = True
    return ''

  def _own_files(self, files: dict[str, list]) -> dict[str, list]:
    """The files that this process verifies."""
    return {
      name: digest
      for i, (name, digest) in enumerate(sorted(files.items()))
      if i % jax.process_count() == jax.process_index()
    }

  def _write_digests(self) -> None:
    # Orbax calls this in the process that renames the checkpoint's folder, just before it does. Until then
    # the folder is named after the step with a suffix.
    for folder in self.directory.glob(f'{self._saving}.*'):
      file_hashes.write_digests(folder, self._digested_parts(folder))

  def _digested_parts(self, folder: pathlib.Path) -> dict[str, int]:
    """The parts whose files each process has digested itself, and the number of processes."""
    return {part: jax.process_count() for part in TREES if (folder / part).is_dir()}

  def delete_after(self, step: int) -> None:
    """Deletes the checkpoints of later steps."""
    for later in [s for s in self.steps() if s > step]:
      self.manager.delete(later)

  def wait(self) -> None:
    """Waits for the writes.

    Raises:
      MachineFailure: if one of them failed.
    """
    with self._writing():
      self.manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the writes and closes the manager; raises as `wait`."""
    with self._writing():
      self.manager.close()

  def _writing(self):
    return writing(self.directory, RESUMES)


def tree_handler(arrays: ocp.type_handlers.ArrayHandler, **options) -> ocp.PyTreeCheckpointHandler:
  """What writes and reads a tree of arrays of JAX, as `arrays` does it, or of NumPy."""
  registry = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, arrays), (np.ndarray, ocp.type_handlers.NumpyHandler())
  )
  return ocp.PyTreeCheckpointHandler(type_handler_registry=registry, **options)


def restore_args(target: PyTree) -> ocp.args.PyTreeRestore:
  """Reads a tree into the shapes, dtypes and shardings of another."""
  return ocp.args.PyTreeRestore(item=target, restore_args=ocp.checkpoint_utils.construct_restore_args(target))


def digest_own_files(handler: ocp.PyTreeCheckpointHandler) -> ocp.PyTreeCheckpointHandler:
  """The handler, with which each process digests what it has written before the checkpoint is committed.

  Otherwise one host would have to read all of it, while the others wait.
  """
  save = handler.async_save

  async def save_and_digest(directory, *args, **kwargs):
    writes = await save(directory, *args, **kwargs)
    index = jax.process_index()

    def digest():
      folder = pathlib.Path(getattr(directory, 'path', directory))  # it may have been created meanwhile
      file_hashes.write_process_digests(folder, index, f'ocdbt.process_{index}')

    return [ocp.future.ChainedFuture(writes or (), digest)]

  handler.async_save = save_and_digest
  return handler


def gather_first_message(message: str) -> str:
  """The first message that is not empty among those of all processes, or ''."""
  messages = processes.gather_bytes(message.encode())
  return next(filter(None, messages), b'').decode()


def state_without_params(state: State) -> dict[str, PyTree]:
  """All of a state but its parameters."""
  others = dict(step=state.step, opt_state=state.opt_state, key=state.key, loss_scale=state.loss_scale)
  return others | (dict(spikes=state.spikes) if state.spikes else {})  # earlier checkpoints lack it


def _loss(metrics) -> float:
  return metrics['loss']
