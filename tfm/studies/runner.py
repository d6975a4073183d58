"""Runs a study: trains and measures the arms that are not finished yet, and resumes after a stop."""

import dataclasses
import itertools
import logging
import pathlib
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax

from tfm.analysis.validation_metrics import list_validation_metrics
from tfm.config.assemble import Experiment
from tfm.config.schema import leaves
from tfm.config.validate import validate_ensemble
from tfm.errors import require, suggest
from tfm.runs import load
from tfm.runs.lock import lock_free_folders
from tfm.runs.run_dir import RunDir
from tfm.runs.train import train_ensemble
from tfm.studies import learning_rates, store
from tfm.studies.arms import Arm, build_model
from tfm.studies.measures.protocol import Measure, build_measure
from tfm.studies.results_table import describe_machine
from tfm.studies.study import RATE, STEPS, Study, change_config, prefix_errors
from tfm.training.metrics import read_validations
from tfm.training.progress_line import print_status
from tfm.training.reporters import Diverged
from tfm.training.vmapped_runs import runs_vmapped


_log = logging.getLogger(__name__)

# The seed of the first run that selects a learning rate; the report has no such seeds.
SELECTION_SEED = 1_000_000


class Stopped(Exception):
  """The process received SIGTERM or Ctrl-C."""


def run_study(study: Study, arms: Mapping[str, Arm], workdir: pathlib.Path) -> None:
  """Trains and measures every arm that is not finished; an arm that fails does not stop the others.

  Raises:
    Stopped: on SIGTERM or Ctrl-C; the same call resumes.
  """
  measures = {text: build_measure(text) for text in study.measures}
  if not study.learning_rates:
    train_rate_variants(arms, workdir, range(study.seeds))
  for i, (name, arm) in enumerate(arms.items(), 1):
    folder = store.arm_dir(workdir, name)
    with lock_free_folders([folder]) as is_free:
      if not is_free:
        continue
      is_done = is_finished(study, arm, folder)
      print_status(f'arm {i} of {len(arms)}: {name}{" (finished)" * is_done}')
      if not is_done:
        run_arm(study, arm, folder, measures)


def run_arm(study: Study, arm: Arm, folder: pathlib.Path, measures: Mapping[str, Measure]) -> None:
  """Trains and measures an arm; what fails is recorded.

  Raises:
    Stopped: on SIGTERM or Ctrl-C.
  """
  record = store.read_arm(folder) | dict(name=arm.name, error=None, unmeasured={})
  start, machine = time.time(), describe_machine()
  record['made'] = [*(entry for entry in record.get('made', []) if entry != machine), machine]
  try:
    selected = arm
    if study.learning_rates:
      try:
        selected = select_learning_rate(study, arm, folder, record)
      except Diverged:  # at every rate: its seeds shall show what they do at the least
        record['rate'] = min(study.learning_rates)
        selected = with_learning_rate(arm, record['rate'])
      store.write_arm(folder, record)  # a resumed study must train the seeds at this rate
    if train_runs(seed_runs(selected, folder, range(study.seeds)), record):
      measure_arm(selected, folder, range(study.seeds), measures, record)
  except Stopped:
    raise
  except Exception as error:  # no error of one arm may stop the others
    record['error'] = f'{type(error).__name__}: {error}'
    path = store.write_traceback(folder)
    print_status(f'the arm {arm.name!r} failed: {error}; see {path}; continuing with the other arms')
  finally:
    record['seconds'] = record.get('seconds', 0.0) + time.time() - start
    store.write_arm(folder, record)


def check_measures(study: Study, arms: Mapping[str, Arm]) -> None:
  """Checks before training that every measure applies to every arm, and that the study's metric will exist.

  Raises:
    ValueError: for an unknown measure, one that does not support an arm, or a metric that nothing computes.
  """
  measures = [build_measure(text) for text in study.measures]
  for arm in arms.values() if measures else ():
    model = build_model(arm.experiment)
    for measure in measures:
      with prefix_errors(arm.name):
        measure.validate(arm.experiment, model)
  base = arms[study.base].experiment
  validation = list_validation_metrics(base, build_model(base))
  measured = [measure.metric_names(validation) for measure in measures]
  known = [*validation, *itertools.chain(*filter(None, measured))]
  require(
    study.metric in known or None in measured,
    f'metric={study.metric!r} is neither a validation metric nor a scalar metric of '
    f'measures={study.measures}; '
    f'{suggest(study.metric, known)}',
  )
  require(
    study.metric in validation or not study.learning_rates,
    f'metric={study.metric!r} is not a validation metric, and learning_rates={study.learning_rates} are '
    f'selected by one; {suggest(study.metric, validation)}',
  )


def check_resumable(study: Study, arms: Mapping[str, Arm], workdir: pathlib.Path) -> None:
  """Checks that the runs on disk have the configs and the learning rates of the study.

  Raises:
    ValueError: for an arm that has changed since it was trained.
  """
  for arm in arms.values():
    folder = store.arm_dir(workdir, arm.name)
    for seed in range(study.seeds):
      if step := store.last_step(folder / f'seed{seed}'):
        record = store.read_arm(folder)
        rates, tried = {f'{rate:g}' for rate in study.learning_rates}, learning_rates.list_rates_tried(record)
        origin = (
          f'selected from {", ".join(sorted(tried, key=float))}' if tried else 'set by its config alone'
        )
        found = record.get('rates') or {}
        require(
          tried == rates or (rates < tried and len(tried - rates) <= found.get('beyond', 0)),
          f'the arm {arm.name!r} in {folder} has a learning rate {origin}, and the study has '
          f'learning_rates={study.learning_rates}; set them back or use a new --workdir',
        )
        for field, before in dict(
          runs_per_rate=found.get('runs', 1), rates_beyond=found.get('beyond', 0)
        ).items():
          require(
            not tried or before == getattr(study, field),
            f'the arm {arm.name!r} in {folder} has a learning rate selected with {field}={before}, and the '
            f'study has {field}={getattr(study, field)}; set it back or use a new --workdir',
          )
        rate = record.get('rate', arm.config.optimizer.learning_rate)
        run = RunDir.from_config(with_learning_rate(arm, rate).config, seed, folder / f'seed{seed}')
        run.checkpoint_metadata(step)


def is_finished(study: Study, arm: Arm, folder: pathlib.Path) -> bool:
  """Whether all seeds of an arm are trained and measured."""
  record = store.read_arm(folder)
  if not record or store.has_error(folder):
    return False
  for seed in range(study.seeds):
    if str(seed) in record.get('diverged', {}):
      continue
    run_dir = folder / f'seed{seed}'
    if not RunDir.from_config(arm.config, seed, run_dir).is_finished():
      return False
    if any(text not in store.read_measured(run_dir) for text in study.measures):
      return False
  return True


def train_rate_variants(arms: Mapping[str, Arm], workdir: pathlib.Path, seeds: Sequence[int]) -> None:
  """Trains arms that differ only in their learning rate in one ensemble, as seeds are.

  Raises:
    Stopped: on SIGTERM or Ctrl-C.
  """
  groups = {}
  for arm in arms.values():
    groups.setdefault(repr(sorted(leaves(with_learning_rate(arm, 0.0).config))), []).append(arm)
  for group in groups.values():
    folders = {arm.name: store.arm_dir(workdir, arm.name) for arm in group}
    records = {name: store.read_arm(folder) for name, folder in folders.items()}
    runs = {
      (arm.name, seed): run for arm in group for seed, run in seed_runs(arm, folders[arm.name], seeds).items()
    }
    diverged = {
      (name, seed): reason
      for name, record in records.items()
      for seed, reason in record.get('diverged', {}).items()
    }
    if len(group) < 2 or len(group_runs(runs, diverged)) != 1:
      continue
    with lock_free_folders([*folders.values()]) as is_free:
      if not is_free:
        continue
      print_status(f'{", ".join(folders)} differ only in their learning rate; training them in one ensemble')
      try:
        train_runs(runs, dict(diverged=diverged))
      except Stopped:
        raise
      except Exception as error:  # no error of the ensemble may stop an arm that can train alone
        print_status(f'the ensemble failed: {error}; training each arm alone')
        continue
      for name, folder in folders.items():
        outcome = dict(
          diverged={seed: reason for (arm, seed), reason in diverged.items() if arm == name},
          together=[*folders],
        )
        store.write_arm(folder, records[name] | dict(name=name) | outcome)


def train_runs(runs: Mapping[Hashable, RunDir], record: dict[str, Any]) -> list[Hashable]:
  """Trains the runs that are not trained yet, in one ensemble where possible.

  Args:
    record: its 'diverged' maps a run's key to the reason; new entries are added.

  Returns:
    The keys of all runs that did not diverge.

  Raises:
    Stopped: on SIGTERM or Ctrl-C.
  """
  diverged = record.setdefault('diverged', {})
  for group in group_runs(runs, diverged):
    try:
      report = train_ensemble([runs[key] for key in group])
      diverged |= {group[i]: reason for i, reason in report.diverged.items()}
    except Diverged as error:
      diverged |= {key: str(error) for key in group}
    if not all(runs[key].is_finished() for key in group if key not in diverged):
      raise Stopped
  return [key for key in runs if key not in diverged]


def group_runs(runs: Mapping[Hashable, RunDir], diverged: Mapping[Hashable, str]) -> list[list[Hashable]]:
  """The keys of the runs that are still to be trained, in groups of one ensemble each.

  One group, where the config allows it. Runs that their validations may end are in groups of one for each
  device on a CPU: a core computes the runs of an ensemble one after another, and those that have ended until
  all have.
  """
  keys = [key for key, run in runs.items() if key not in diverged and not run.is_finished()]
  if len(keys) < 2:
    return [keys] if keys else []
  experiment = Experiment(runs[keys[0]].config)
  try:
    validate_ensemble(experiment, jax.process_count())
  except ValueError as error:
    _log.info('training one run after another: %s', error)
    return [[key] for key in keys]
  if experiment.stop_rule.metric and not runs_vmapped(jax.default_backend()):
    size = jax.local_device_count()
    return [keys[i : i + size] for i in range(0, len(keys), size)]
  return [keys]


def seed_runs(arm: Arm, folder: pathlib.Path, seeds: Sequence[int]) -> dict[str, RunDir]:
  """The runs of an arm, by seed."""
  return {str(seed): RunDir.from_config(arm.config, seed, folder / f'seed{seed}') for seed in seeds}


def measure_arm(
  arm: Arm,
  folder: pathlib.Path,
  seeds: Sequence[int],
  measures: Mapping[str, Measure],
  record: dict[str, Any],
) -> None:
  """Computes the measures that a trained seed lacks.

  Args:
    record: its 'unmeasured' maps a measure's spec to the error; new entries are added.
  """
  prepared, unmeasured = {}, record['unmeasured']
  for seed in seeds:
    if str(seed) in map(str, record.get('diverged', {})):
      continue
    run_dir = folder / f'seed{seed}'
    measured = store.read_measured(run_dir)
    missing = [text for text in measures if text not in measured]
    if not missing:
      continue
    run = load.load(run_dir)
    for text in missing:
      if text in unmeasured:
        continue
      try:
        if text not in prepared:
          prepared[text] = measures[text].prepare(run)
        numbers = measures[text].measure_run(prepared[text], run, run_dir)
        measured[text] = [dataclasses.asdict(value) for value in numbers]
      except Exception as error:  # no error of one measure may stop the others
        unmeasured[text] = f'{type(error).__name__}: {error}'
        path = store.write_traceback(folder)
        print_status(f'{text} of the arm {arm.name!r} could not be measured: {error}; see {path}')
        continue
      store.write_measured(run_dir, measured)


def select_learning_rate(study: Study, arm: Arm, folder: pathlib.Path, record: dict[str, Any]) -> Arm:
  """The arm at its best learning rate: between those of `study.learning_rates` and, where the best is at an
  end of them, up to `study.rates_beyond` more; by `study.runs_per_rate` runs each from `SELECTION_SEED` on.

  Before the rates that remain train in full, each of `study.rungs` drops half of them; one that turns out to
  be next to the best trains in full after all.

  Args:
    record: its 'rates' holds the results of each rate, in full and in each rung.

  Raises:
    Diverged: if every rate diverged.
    Stopped: on SIGTERM or Ctrl-C.
  """
  outcome, rates = record.setdefault('rates', {}), sorted(study.learning_rates)
  shorter = [with_steps(arm, fraction) for fraction in study.rungs]
  rungs = {str(each.config.training.steps): each for each in shorter}
  outcome['runs'] = study.runs_per_rate
  outcome['rungs'] = {steps: outcome.get('rungs', {}).get(steps, {}) for steps in rungs}
  for steps, rung in rungs.items():
    try_rates(study, rung, rates, folder / f'rung{steps}', outcome['rungs'][steps])
    rates = learning_rates.select_survivors(outcome['rungs'][steps], not study.higher_is_better)
  outcome['beyond'], tried = study.rates_beyond, [*study.learning_rates]
  while True:
    try_rates(study, arm, rates, folder, outcome)
    optimum = learning_rates.choose_rate(outcome, tried, not study.higher_is_better)
    if dropped := learning_rates.find_dropped_neighbours(outcome, optimum.best):
      rates = [*rates, *dropped]
      continue
    if not optimum.is_at_edge or len(tried) == len(study.learning_rates) + study.rates_beyond:
      break
    tried.append(learning_rates.rate_beyond(tried, optimum.best))
    rates = [*rates, tried[-1]]
  record['rate'] = optimum.rate
  if optimum.is_at_edge:
    print_status(
      f'the best learning rate of the arm {arm.name!r} is {optimum.best:g}, at an end of those tried; a '
      'wider range may be better'
    )
  return with_learning_rate(arm, optimum.rate)


def try_rates(
  study: Study, arm: Arm, rates: Sequence[float], folder: pathlib.Path, outcome: dict[str, Any]
) -> None:
  """Trains the runs of each rate.

  Args:
    folder: of the folders of the runs.
    outcome: receives, by the rate's text: as 'reached' the metric in the mean of its runs, or as 'diverged'
      why one of them diverged; and as 'steps' how many they took, where all reach the goal that
      `training.stop_when` has for the metric.

  Raises:
    Diverged: if every rate diverged.
  """
  runs = {
    (f'{rate:g}', i): RunDir.from_config(
      with_learning_rate(arm, rate).config, SELECTION_SEED + i, folder / f'rate{rate:g}{f"_run{i}" * (i > 0)}'
    )
    for rate in rates
    for i in range(study.runs_per_rate)
  }
  known = outcome.get('diverged', {})
  lost = dict(diverged={key: known[key[0]] for key in runs if key[0] in known})
  try:
    train_runs(runs, lost)
  finally:
    outcome['diverged'] = {rate: reason for (rate, _), reason in lost['diverged'].items()}
  reached, steps, rule = {}, {}, arm.experiment.stop_rule
  has_goal = rule.is_goal and rule.metric == study.metric
  for (rate, _), run in runs.items():
    if rate not in outcome['diverged']:
      reached.setdefault(rate, []).append(store.final_metrics(run.workdir)[study.metric])
      if has_goal:
        validations = read_validations(run.workdir, arm.config.training.steps)
        steps.setdefault(rate, []).append(validations[-1]['step'] if rule(validations) else None)
  outcome['reached'] = {rate: sum(of_runs) / len(of_runs) for rate, of_runs in reached.items()}
  if has_goal:
    outcome['steps'] = {rate: sum(taken) / len(taken) for rate, taken in steps.items() if None not in taken}
  if not outcome['reached']:
    raise Diverged(f'the arm diverged at every one of learning_rates={tuple(rates)}')


def with_learning_rate(arm: Arm, rate: float) -> Arm:
  """A copy of the arm with another learning rate."""
  return _with_fields(arm, {RATE: rate})


def with_steps(arm: Arm, fraction: float) -> Arm:
  """A copy of the arm that trains for a part of its steps, with a schedule and a warm-up of this part."""
  steps, warmup = (round(fraction * n) for n in (arm.config.training.steps, arm.config.optimizer.warmup))
  return _with_fields(arm, {STEPS: max(1, steps), 'optimizer.warmup': warmup})


def _with_fields(arm: Arm, changes: Mapping[str, Any]) -> Arm:
  return dataclasses.replace(arm, experiment=Experiment(change_config(arm.config, changes)))
