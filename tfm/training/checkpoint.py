"""Checkpoints: everything a run needs to go on as if it had never stopped, by Orbax."""

import logging
import pathlib
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from tfm.parallel import processes
from tfm.shapes import PyTree
from tfm.training import digests
from tfm.training.state import State


# Bytes of a sentence that processes tell each other.
SENTENCE = 512

# Orbax warns of a read-only manager that it is read only, of a checkpoint that has no metrics, and of one that every process
# writes for itself that nobody tells the size of all.
KNOWN = 'read only', 'read_only=True', 'tracked_metric', 'Global object size logging disabled'
logging.getLogger('absl').addFilter(lambda record: not any(known in record.getMessage() for known in KNOWN))


class Damaged(ValueError):
  """A file of a checkpoint is not what was saved."""


class Checkpoints:
  """The checkpoints of one run: atomic, written in the background, the last few and the best kept.

  One checkpoint holds `params`, `rest` (optimizer, step, key, loss scale: apart, so that evaluation
  reads half) and `run`, JSON: the data iterator's state, the tokenizer, the resolved config, the
  corpus hash. "Best" is the lowest validation loss. The digest of every file is written with it, before
  it takes its place, and what is read is held against it.
  """

  # How Orbax writes a tree of arrays, and reads it into a target.
  write, read = ocp.args.StandardSave, ocp.args.StandardRestore
  # Whether its folders are made in the background, too, of which process 0 tells the others.
  in_background = True

  def __init__(self, workdir: pathlib.Path, keep: int | None = None):
    """Opens the checkpoints of `workdir`, which `keep=None` leaves as they are."""
    self._open(pathlib.Path(workdir).absolute() / 'checkpoints', keep)

  def _open(self, directory: pathlib.Path, keep: int | None, handlers=None, **options) -> None:
    keeps = policies.AnyPreservationPolicy(
      [
        policies.LatestN(keep),
        policies.BestN(get_metric_fn=_loss, reverse=True, n=1, keep_checkpoints_without_metrics=False),
      ]
    )
    self.directory = directory
    if keep:
      directory.mkdir(parents=True, exist_ok=True)
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
          post_finalization_callback=self._seal, create_directories_asynchronously=self.in_background
        )
        if keep
        else None,
        **options,
      ),
    )
    self._whole, self._saving = {}, None

  def save(self, state: State, run: dict[str, Any], loss: float | None) -> None:
    """Begins to save; the write goes on in the background, the checkpoint appears when it is whole."""
    self.manager.wait_until_finished()  # Orbax would, too; after it nobody asks for the earlier step's number
    self._saving = int(state.step)
    self.manager.save(
      self._saving,
      metrics=None if loss is None else {'loss': loss},
      force=True,
      args=ocp.args.Composite(
        params=self.write(state.params), rest=self.write(rest(state)), run=ocp.args.JsonSave(run)
      ),
    )

  def begin(self, params: PyTree, run: dict[str, Any]) -> None:
    """Saves parameters that no step of this run made, as step 0, from which nothing is resumed."""
    self._saving = 0
    self.manager.save(
      0, force=True, args=ocp.args.Composite(params=self.write(params), run=ocp.args.JsonSave(run))
    )

  def find(self, which: str) -> int:
    """The step that 'last', 'best' or a number names.

    Raises:
      ValueError: if there is no such checkpoint, with those there are.
    """
    steps = self.steps()
    if not steps:
      raise ValueError(f'{self.directory} holds no checkpoint; train first')
    if which == 'last':
      return steps[-1]
    if which == 'best':
      best = self.manager.best_step()
      if best is None:
        raise ValueError(f"step='best' needs an evaluated checkpoint; there are {steps}")
      return best
    if not str(which).isdigit() or int(which) not in steps:
      raise ValueError(f"step={which!r} is not there; 'last', 'best' or one of {steps} would do")
    return int(which)

  def steps(self) -> list[int]:
    """The complete steps, in order."""
    return sorted(self.manager.all_steps())

  def latest(self) -> int | None:
    """The last complete step, or None."""
    return self.manager.latest_step()

  def run(self, step: int) -> dict[str, Any]:
    """The JSON part of a checkpoint."""
    self.check(step, 'run')
    return self.manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore()))['run']

  def params(self, step: int, target: PyTree) -> PyTree:
    """The parameters, each leaf born as its `ShapeDtypeStruct` in `target` says."""
    self.check(step, 'params')
    return self.manager.restore(step, args=ocp.args.Composite(params=self.read(target)))['params']

  def averaged(self, step: int, count: int, target: PyTree) -> PyTree:
    """The mean of the parameters of the last `count` checkpoints up to `step` (Vaswani et al. 2017, §6.1).

    Raises:
      ValueError: if there are fewer.
    """
    steps = [s for s in self.steps() if s <= step][-count:]
    if len(steps) < count:
      raise ValueError(
        f'average={count} checkpoints up to step {step} are not there; there are {steps}, and '
        '--average=1 takes that one alone'
      )
    mean = self.params(steps[0], target)
    for i, s in enumerate(steps[1:], start=2):
      mean = jax.tree.map(lambda m, x: m + (x - m) / i, mean, self.params(s, target))
    return mean

  def state(self, step: int, target: State) -> State:
    """The whole state, under the shardings of `target`, whatever mesh it was saved from."""
    for part in ('params', 'rest'):
      self.check(step, part)
    restored = self.manager.restore(
      step, args=ocp.args.Composite(params=self.read(target.params), rest=self.read(rest(target)))
    )
    leaves = jax.tree.leaves(restored['rest'])
    # Orbax gives containers back as dictionaries; the structure is the target's.
    others = jax.tree.unflatten(jax.tree.structure(rest(target)), leaves)
    return target.replace(params=restored['params'], **others)

  def check(self, step: int, part: str) -> None:
    """Refuses a part of a checkpoint that is `damaged`.

    Raises:
      Damaged: naming the file, and the checkpoint to go on from.
    """
    if said := self.damaged(step, part):
      folder, before = self.directory / str(step), [other for other in self.steps() if other < step]
      raise Damaged(
        f'{said}; '
        + (
          f'the one before it is {before[-1]}: --step={before[-1]} reads it, and training goes on from it when the folder '
          f'{folder} is deleted'
          if before
          else 'there is none before it, and training begins anew when its folder is deleted'
        )
      )

  def damaged(self, step: int, part: str) -> str:
    """What is wrong with the files of a part of a checkpoint, held against the digests that were written with them, once; '' for
    nothing.

    Of several processes each reads some of the files, and all say what one finds. A checkpoint of an earlier version,
    which has no digests, is not checked.
    """
    if (step, part) in self._whole:
      return ''
    folder = self.directory / str(step)
    try:
      files = {name: told for name, told in digests.sealed(folder).items() if name.startswith(f'{part}/')}
      found = digests.damage(folder, self._mine(files))
    except ValueError as error:  # to be said by all, too
      found = str(error)
    if found := said_by_all(found):
      return f'the checkpoint {step} in {self.directory} is damaged: {found}'
    self._whole[step, part] = True
    return ''

  def _mine(self, files: dict[str, list]) -> dict[str, list]:
    """Those of all files that this process reads."""
    return {
      name: told
      for i, (name, told) in enumerate(sorted(files.items()))
      if i % jax.process_count() == jax.process_index()
    }

  def _seal(self) -> None:
    # Orbax asks this of the process that puts a checkpoint into its place, before it does; until then the folder has
    # the name of the step with more behind it.
    for folder in self.directory.glob(f'{self._saving}.*'):
      digests.seal(folder)

  def forget(self, step: int) -> None:
    """Deletes what was saved after a step."""
    for later in [s for s in self.steps() if s > step]:
      self.manager.delete(later)

  def wait(self) -> None:
    """Returns when nothing is being written."""
    self.manager.wait_until_finished()

  def close(self) -> None:
    """Waits for the writes and lets go."""
    self.manager.close()


def said_by_all(sentence: str) -> str:
  """The first sentence that any process says; '' if none says any."""
  every = processes.gather_bytes(sentence.encode()[:SENTENCE].ljust(SENTENCE))
  return next((said for one in every if (said := one.rstrip().decode(errors='ignore'))), '')


def restore_target(abstract: PyTree, shardings: PyTree) -> PyTree:
  """Shapes and shardings to restore into."""
  return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, shardings)


def rest(state: State) -> dict[str, PyTree]:
  """All of a state but its parameters."""
  others = dict(step=state.step, opt_state=state.opt_state, key=state.key, loss_scale=state.loss_scale)
  return others | (dict(spikes=state.spikes) if state.spikes else {})  # earlier checkpoints know no such name


def _loss(metrics) -> float:
  return metrics['loss']
