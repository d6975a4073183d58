"""Training in stages: prepare → shard → restore or initialize → compile → fit → close.

One run and an ensemble of runs go the same way; `tfm.training.vmapped_runs` holds what differs.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence

import flax.linen as nn
import grain
import jax
import numpy as np
from jax.sharding import NamedSharding
from ml_collections import ConfigDict

from tfm import variant_folders
from tfm.config import validate
from tfm.config.schema import leaves
from tfm.data import pipeline
from tfm.data.row_share import process_share
from tfm.errors import require
from tfm.models import flops
from tfm.parallel import chip_specs, processes, sharding
from tfm.parallel import mesh as meshes
from tfm.runs.init_from import PretrainedRun, fill_params
from tfm.runs.lock import lock_workdir
from tfm.runs.log_file import describe_run, log_to_file
from tfm.runs.measure_split import build_evaluate_fn
from tfm.runs.prepare import Prepared, prepare
from tfm.runs.run_dir import RunDir
from tfm.training import loop
from tfm.training import state as states
from tfm.training.checkpoint import Checkpoints
from tfm.training.goodput import TIERS, Goodput
from tfm.training.local_checkpoints import LocalCheckpoints
from tfm.training.metrics import MetricsLog, NullMetricsLog, read_validations
from tfm.training.profiler import Profiler
from tfm.training.progress_line import current_display, print_status
from tfm.training.reporters import Report
from tfm.training.state import State
from tfm.training.throughput import Throughput
from tfm.training.vmapped_runs import Ensemble, SingleRun, Step


FILES = 'config.json', 'log.txt', 'metrics.jsonl', 'checkpoints/', 'curves.png'

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Sharded:
  """Where states and batches live.

  Attributes:
    runs: one run or an ensemble, with the mesh; rules: logical axis → mesh axis.
    abstract_state: shapes of a state, boxed; shardings: of a state; batch_sharding: of an array [B, …]. Both
      have the frozen model of the objective, if it has one, which no checkpoint has.
    iterators: the training batches of each run.
  """

  runs: SingleRun | Ensemble
  rules: sharding.Rules
  abstract_state: State
  shardings: State
  batch_sharding: NamedSharding
  iterators: Sequence[grain.DatasetIterator]


@dataclasses.dataclass(frozen=True)
class Stores:
  """The open checkpoints: of each run in its --workdir, and local ones or None."""

  runs: Sequence[Checkpoints]
  local: LocalCheckpoints | None


def train(config: ConfigDict, workdir: str) -> None:
  """Trains a resolved config in `workdir`, from its last checkpoint if there is one.

  Raises:
    ValueError: before anything compiles, for a config that cannot be run or that differs from the
      checkpoint's in a field that changes results.
    Diverged: if a metric stops being finite.
  """
  train_ensemble([RunDir.from_config(config, config.seed, workdir)])


def train_ensemble(run_dirs: Sequence[RunDir]) -> Report:
  """Trains one run, or several in one compiled step whose configs differ in seed and learning rate only.

  Every run computes what it would compute alone: parameters, batches and files are those of `train`, up to
  the order of sums. A run that diverges stops, and the others continue. Devices divide the runs among them.

  Returns:
    The report, with the runs that diverged by their indices in `run_dirs`.

  Raises:
    ValueError, Diverged: as `train`; the latter if no run is left. For several runs also for configs that
      differ otherwise, a mesh, several processes, or batches of several shapes.
  """
  with contextlib.ExitStack() as stack:
    prepared = prepare(run_dirs, stack.enter_context(variant_folders.recording()))
    sharded = shard(prepared)
    stores = open_stores(prepared, stack)
    if prepared.resume.step:
      initial = restore(prepared, sharded, stores)
    else:
      initial = initialize(prepared, sharded)
    if stores.local:
      stores.local.require_complete_copies(initial[0])
    initial = add_reference(initial, prepared, sharded)
    report = open_report(prepared, sharded, stack)
    with sharding.context(sharded.runs.mesh, sharded.rules):
      state, step = sharded.runs.combine(initial), compile_step(prepared, sharded)
      del initial  # an ensemble's stacked state is a copy
      with report.training():
        fit(prepared, sharded, stores, state, step, report)
        close(stores, report.goodput)
      _log.info('%s', report.goodput)
  ended = (
    report.finished if report.step < prepared.config.training.steps else [*report.finished, *report.live]
  )
  for run, run_dir in enumerate(run_dirs):
    written = [file for file in FILES if (run_dir.workdir / file).exists()]
    end = 'diverged' if run in report.diverged else 'finished' if run in ended else 'stopped'
    current_display().show_end(run_dir.workdir, report.step, end, written)
  return report


def shard(prepared: Prepared) -> Sharded:
  """Lays out states and batches on the devices' mesh, and opens the batches of this process.

  Raises:
    ValueError: if the mesh does not divide a parameter or the batch.
  """
  config, experiment = prepared.config, prepared.experiment
  if len(prepared.run_dirs) > 1:
    rates = [run_dir.config.optimizer.learning_rate for run_dir in prepared.run_dirs]
    runs = Ensemble.on_devices(np.asarray(rates, np.float32), jax.devices())
  else:
    runs = SingleRun(meshes.from_config(config))
  rules = sharding.parse_rules(config.rules)
  abstract = states.abstract_state(prepared.init)
  if prepared.reference:
    abstract = abstract.replace(reference=prepared.reference.abstract)
  validate.validate_state(experiment, abstract, runs.mesh, len(prepared.run_dirs))
  shardings = experiment.state_shardings(abstract, runs.mesh)
  batch_sharding = sharding.batch_sharding(runs.mesh, rules)

  def open_batches(seed):
    data, length = prepared.data, config.data.length
    rows = experiment.objective.rows(experiment.packing, data.tokens('train'), length, seed, data.tokenizer)
    return pipeline.train_iterator(
      rows,
      config.training.batch_size,
      process_share(batch_sharding, config.training.batch_size),
      config.data.reader_threads,
    )

  iterators = [open_batches(run_dir.config.seed) for run_dir in prepared.run_dirs]
  return Sharded(runs, rules, abstract, shardings, batch_sharding, iterators)


def open_stores(prepared: Prepared, stack: contextlib.ExitStack) -> Stores:
  """Locks each run's directory, writes its config.json and opens its checkpoints; `stack` closes them.

  Raises:
    ValueError: if another process trains in one of the directories, or has since it was prepared.
  """
  run_dirs, training, local = prepared.run_dirs, prepared.config.training, prepared.resume.local
  for run_dir, steps in zip(run_dirs, prepared.resume.saved_steps):
    if processes.is_main_process():
      run_dir.workdir.mkdir(parents=True, exist_ok=True)
      stack.enter_context(lock_workdir(run_dir.workdir))
    require(
      run_dir.saved_steps() == steps,  # Orbax reads them in all processes together
      f'--workdir={run_dir.workdir} has gained or lost checkpoints while this process started: another one '
      'used it; run the command again',
    )
    run_dir.write_config()
  # An ensemble keeps two: a kill may come between the saves of two runs.
  keep = max(training.keep_checkpoints, 2) if len(run_dirs) > 1 else training.keep_checkpoints
  checkpoints = [
    stack.enter_context(contextlib.closing(Checkpoints(run_dir.workdir, keep))) for run_dir in run_dirs
  ]
  if local:
    stack.enter_context(contextlib.closing(local))
    if not prepared.resume.from_local:
      local.clear()
  return Stores(checkpoints, local)


def restore(prepared: Prepared, sharded: Sharded, stores: Stores) -> list[State]:
  """The state of each run at the resume step; sets its iterator there and deletes later checkpoints."""
  resume, pretrained, is_trainable = (
    prepared.resume,
    prepared.pretrained,
    prepared.experiment.optimizer.is_trainable,
  )
  target = sharding.with_shardings(nn.unbox(sharded.abstract_state), sharded.shardings)

  saved_target = pretrained.drop_frozen(target, is_trainable) if pretrained else target
  sources = [stores.local] if resume.from_local else stores.runs
  restored = [checkpoints.restore_state(resume.step, saved_target) for checkpoints in sources]
  if pretrained:
    restored = add_pretrained(restored, pretrained, target, sharded)
  for checkpoints, iterator, metadata in zip(stores.runs, sharded.iterators, resume.metadata):
    iterator.set_state(metadata['data'])
    checkpoints.delete_after(resume.step)
  if resume.from_local:
    stores.local.delete_after(resume.step)
  return restored


def initialize(prepared: Prepared, sharded: Sharded) -> list[State]:
  """The state of each run before its first step; only what config.init_from lacks is initialized."""
  pretrained = prepared.pretrained
  # The frozen model of the objective is not initialized.
  where = sharded.shardings.replace(reference=None)
  target = sharding.with_shardings(nn.unbox(sharded.abstract_state.replace(reference=None)), where)
  seeds = [run_dir.config.seed for run_dir in prepared.run_dirs]
  if not pretrained:
    return states.init_states(prepared.init, seeds, where, sharded.runs.mesh, sharded.rules)
  pretrained.report_differences(target.params, prepared.experiment.optimizer.is_trainable)
  initial = states.init_states(
    lambda key: pretrained.drop_pretrained(nn.unbox(prepared.init(key))),
    seeds,
    jax.tree.map(lambda leaf: leaf.sharding, pretrained.drop_pretrained(target)),
    sharded.runs.mesh,
    sharded.rules,
  )
  return add_pretrained(initial, pretrained, target, sharded)


def add_pretrained(
  partial: Sequence[State], pretrained: PretrainedRun, target: State, sharded: Sharded
) -> list[State]:
  """The states, whose missing parameters are read from config.init_from."""
  params = pretrained.restore(sharded.runs.mesh, sharded.rules)
  return [state.replace(params=fill_params(state.params, target.params, params)) for state in partial]


def add_reference(initial: Sequence[State], prepared: Prepared, sharded: Sharded) -> list[State]:
  """The states, with the frozen model that the objective compares with, if it has one."""
  reference = prepared.reference.restore(sharded.runs.mesh, sharded.rules) if prepared.reference else None
  return [state.replace(reference=reference) for state in initial]


def open_report(prepared: Prepared, sharded: Sharded, stack: contextlib.ExitStack) -> Report:
  """Opens the logs of the main process and describes the run in them; `stack` closes them."""
  config, first = prepared.config, prepared.resume.step
  description = describe_run(
    prepared.experiment, prepared.data, sharded.abstract_state.params, sharded.runs.mesh, first
  )
  if origin := prepared.metadata.get('init_from'):
    description += f'\ncontinues {origin["workdir"]}: starts from its parameters of step {origin["step"]}'
  if reference := prepared.reference:
    description += f'\ncompares with {reference.workdir}: the model of step {reference.step}'
  print_status(description)
  workdirs = [run_dir.workdir for run_dir in prepared.run_dirs]
  is_main = processes.is_main_process()
  for workdir in workdirs if is_main else ():
    stack.enter_context(log_to_file(workdir, description))
  logs = [
    stack.enter_context(
      contextlib.closing(
        MetricsLog(run_dir.workdir, first, prepared.experiment.sinks, dict(leaves(run_dir.config)))
        if is_main
        else NullMetricsLog(run_dir.workdir)
      )
    )
    for run_dir in prepared.run_dirs
  ]
  flops_per_token = flops.training_flops_per_token(prepared.model, config.data.length)
  throughput = Throughput(flops_per_token, chip_specs.peak_flops())
  goodput = Goodput(workdirs if is_main else [], first, prepared.started)
  validations = [read_validations(workdir, first) for workdir in workdirs]
  return Report(logs, throughput, goodput, first, config.training.steps, validations)


def compile_step(prepared: Prepared, sharded: Sharded) -> Step:
  """The jitted training step; its first call compiles it."""
  experiment = prepared.experiment
  build_step = functools.partial(experiment.build_step, prepared.model)
  options = experiment.compiler.resolve(jax.default_backend(), jax.device_count())
  return sharded.runs.jit_step(build_step, sharded.shardings, options)


def fit(
  prepared: Prepared, sharded: Sharded, stores: Stores, state: State, step: Step, report: Report
) -> None:
  """Trains to the last step, evaluating, logging and saving as the config's cadence says."""
  experiment, training, runs = prepared.experiment, prepared.config.training, sharded.runs
  where = sharding.batch_sharding(runs.data_mesh, sharded.rules)
  evaluate = build_evaluate_fn(
    experiment, prepared.model, prepared.data, where, 'validation', training.evaluation_batches
  )

  def validate(state):
    with sharding.context(runs.data_mesh, sharded.rules):
      return evaluate(state.params, state.reference)

  loop.fit(
    state,
    runs.prefetch(sharded.iterators, sharded.batch_sharding, training.batch_size),
    loop.Functions(step, validate, build_save_fns(prepared, stores), runs.build_split_fn()),
    loop.Cadence(
      training.steps,
      training.log_every,
      training.evaluate_every,
      dict(zip(TIERS, experiment.save_intervals)),
      experiment.stop_rule,
    ),
    report,
    Profiler(
      str(prepared.run_dirs[0].workdir / 'profile'),
      training.profile if processes.is_main_process() else 0,
      prepared.resume.step,
      training.steps,
    ),
  )


def build_save_fns(prepared: Prepared, stores: Stores) -> dict[str, Callable[..., None]]:
  """For each tier of checkpoints, a function (run, its state, its data position, loss or None) that saves the
  run."""
  pretrained, is_trainable = prepared.pretrained, prepared.experiment.optimizer.is_trainable

  def save(checkpoints, run, state, position, loss):
    checkpoints[run].save(
      pretrained.drop_frozen(state, is_trainable) if pretrained else state,
      dict(prepared.metadata, config=prepared.run_dirs[run].config.to_dict(), data=position),
      loss,
    )

  tiers = (stores.runs, [stores.local]) if stores.local else (stores.runs,)
  return {tier: functools.partial(save, checkpoints) for tier, checkpoints in zip(TIERS, tiers)}


def close(stores: Stores, goodput: Goodput) -> None:
  """Waits for the last saves and deletes local checkpoints, which the last save replaces."""
  with goodput.measure('saving'):
    for checkpoints in stores.runs:
      checkpoints.wait()
    if stores.local:
      stores.local.clear()
  goodput.record_end()
