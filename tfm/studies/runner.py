"""A study carried out: its arms trained and asked, in folders that are ordinary runs, and what came of it as a table.

DIR/arms/ARM/arm.json        what the arm is, where and when it trained, how long it took, what went wrong
DIR/arms/ARM/time.json       of match='time': how long its step takes, and the base's beside it
DIR/arms/ARM/seed0/          a run, as tfm train makes it
DIR/arms/ARM/seed0/measured.json
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import itertools
import json
import logging
import os
import pathlib
import platform
import time
import traceback
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

import tfm.studies.measures
from tfm import spec
from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import leaves
from tfm.config.validate import validate_ensemble
from tfm.errors import require, suggest
from tfm.parallel import chips
from tfm.runs import load as run
from tfm.runs.run_dir import RunDir
from tfm.runs.train import train_ensemble
from tfm.studies.arms import Arm, model_of, naming, validated
from tfm.studies.measures.protocol import Measure
from tfm.studies.report import ranking
from tfm.studies.study import Study, folder_name
from tfm.training import checkpoint, goodput, metrics
from tfm.training.progress import print_status
from tfm.training.report import Diverged


_log = logging.getLogger(__name__)

RATE_SEED = 1_000_000  # of the runs that choose a learning rate: no seed that is reported


class Stopped(Exception):
  """Asked to stop, by SIGTERM or Ctrl-C."""


def carry_out(study: Study, arms: Mapping[str, Arm], workdir: pathlib.Path) -> None:
  """Trains and asks every arm that is not finished; an arm that fails says why and does not stop the others.

  Raises:
    Stopped: if it was asked to; the same call goes on from there.
  """
  measures = {text: measure(text) for text in study.measures}
  if not study.rates:
    train_alike(arms, workdir, range(study.seeds))
  for i, (name, arm) in enumerate(arms.items(), 1):
    folder, began = folder_of(workdir, name), time.time()
    folder.mkdir(parents=True, exist_ok=True)
    said = about(folder) | dict(name=name, error=None, unmeasured={})
    if finished(study, arm, folder):
      print_status(f'arm {i} of {len(arms)}: {name}, which is finished')
      continue
    print_status(f'arm {i} of {len(arms)}: {name}')
    said['made'] = [*(one for one in said.get('made', []) if one != makers()), makers()]
    try:
      chosen = arm
      if study.rates:
        chosen = at_best_rate(study, arm, folder, said)
        write(
          folder / 'arm.json', json.dumps(said, indent=2)
        )  # whatever ends the process: its seeds have this rate
      if train_all(of_seeds(chosen, folder, range(study.seeds)), said):
        ask(chosen, folder, range(study.seeds), measures, said)
    except Stopped:
      raise
    except Exception as error:  # whatever it is, the other arms are no worse for it
      said['error'] = f'{type(error).__name__}: {error}'
      (folder / 'error.txt').write_text(traceback.format_exc())
      print_status(
        f'the arm {name!r} failed: {error}; {folder / "error.txt"} tells where, and the others go on'
      )
    finally:
      said['seconds'] = said.get('seconds', 0.0) + time.time() - began
      write(folder / 'arm.json', json.dumps(said, indent=2))


def check_questions(study: Study, arms: Mapping[str, Arm]) -> None:
  """Refuses what would come out only when an arm has been trained.

  Raises:
    ValueError: for a measure that is not there, or that cannot be asked of an arm, and for a metric that nothing gives.
  """
  measures = [measure(text) for text in study.measures]
  for arm in arms.values() if measures else ():
    model = model_of(arm.config)
    for one in measures:
      with naming(arm.name):
        one.check(arm.config, model)
  validation = validated(arms[study.base].config)
  others = [one.plain(validation) for one in measures]
  known = [*validation, *itertools.chain(*filter(None, others))]
  require(
    study.metric in known or None in others,
    f'metric={study.metric!r} is given neither by the validation nor, without an '
    f'x, by measures={study.measures}; {suggest(study.metric, known)}',
  )
  require(
    study.metric in validation or not study.rates,
    f'metric={study.metric!r} is no metric of the validation, by which rates={study.rates} are chosen; '
    f'{suggest(study.metric, validation)}',
  )


def refuse_others(study: Study, arms: Mapping[str, Arm], workdir: pathlib.Path) -> None:
  """Refuses to go on with arms that are no longer what they were."""
  for arm in arms.values():
    folder = folder_of(workdir, arm.name)
    for seed in range(study.seeds):
      if step := reached(folder / f'seed{seed}'):
        said = about(folder)
        tried, rates = said.get('rates', {}), {f'{rate:g}' for rate in study.rates}
        tried = {*tried.get('reached', ()), *tried.get('diverged', ())}
        require(
          tried == rates,
          f'the arm {arm.name!r} in {folder} has a learning rate '
          f'{"of its own" if not tried else "from " + ", ".join(sorted(tried, key=float))}, and the study has '
          f'rates={study.rates}; set them back or give a new --workdir',
        )
        rate = said.get('rate', arm.config.optimizer.learning_rate)
        RunDir.from_config(with_rate(arm, rate).config, seed, folder / f'seed{seed}').checkpoint_metadata(
          step
        )


def paced(
  study: Study, workdir: pathlib.Path, keep: bool, arms: Mapping[str, ConfigDict]
) -> dict[str, float]:
  """Seconds of a step of each arm's config: as its folder has kept them, else measured beside the base's. So every process,
  and every later call, matches the arms alike.

  Args:
    keep: whether what is measured is kept.

  Raises:
    ValueError: if what is kept is of another config.
  """
  base, found = arms[study.base], {}
  paths = {name: folder_of(workdir, name) / 'time.json' for name in arms if name != study.base}
  for name, path in paths.items():
    if path.exists():
      found[name] = json.loads(path.read_text())
      for field, config in (('base', base), ('config', arms[name])):
        old = resolve_config(complete(found[name][field]))
        old.training.steps = config.training.steps
        lines = list_differences(old.to_dict(), config.to_dict())
        require(
          not lines,
          f'{path} was measured of another config, {"; ".join(lines)}; set it back or give a new --workdir',
        )
  missing = {name: Experiment(arms[name]) for name in paths if name not in found}
  for name, (own, of_base) in (
    estimate.measure_steps_in_turns(Experiment(base), missing, study.seeds) if missing else {}
  ).items():
    found[name] = dict(
      seconds=own,
      base_seconds=of_base,
      machine=makers()['machine'],
      config=arms[name].to_dict(),
      base=base.to_dict(),
    )
    if keep:
      found[name] = kept(paths[name], found[name])
  # Only what an arm takes beside the base counts: what else the machine did fell on both.
  unit = next(iter(found.values()))['base_seconds'] if found else 1.0
  return {study.base: unit} | {
    name: unit * told['seconds'] / told['base_seconds'] for name, told in found.items()
  }


def kept(path: pathlib.Path, made: Mapping[str, Any]) -> dict[str, Any]:
  """What a file holds, which is written unless another process has done so before."""
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_name(f'{path.name}.{os.getpid()}')
  part.write_text(json.dumps(made, indent=2))
  with contextlib.suppress(FileExistsError):
    os.link(part, path)  # whole, and only if there is none
  part.unlink()
  return json.loads(path.read_text())


def finished(study: Study, arm: Arm, folder: pathlib.Path) -> bool:
  """Whether nothing of an arm is left to train or to ask."""
  said, seeds = about(folder), [str(seed) for seed in range(study.seeds)]
  if failed(folder) or not said:
    return False
  for seed in (seed for seed in seeds if seed not in said.get('diverged', {})):
    place = folder / f'seed{seed}'
    if reached(place) < arm.config.training.steps or any(text not in asked(place) for text in study.measures):
      return False
  return True


def train_alike(arms: Mapping[str, Arm], workdir: pathlib.Path, seeds: Sequence[int]) -> None:
  """Trains arms that differ in their learning rate alone in one step, as seeds are. What they are asked, and what went wrong
  with them together, is each arm's own.

  Raises:
    Stopped: if it was asked to.
  """
  groups = {}
  for arm in arms.values():
    groups.setdefault(repr(sorted(leaves(with_rate(arm, 0.0).config))), []).append(arm)
  for group in groups.values():
    folders = {arm.name: folder_of(workdir, arm.name) for arm in group}
    told = {name: about(folder) for name, folder in folders.items()}
    places = {
      (arm.name, seed): place
      for arm in group
      for seed, place in of_seeds(arm, folders[arm.name], seeds).items()
    }
    diverged = {
      (name, seed): why for name, said in told.items() for seed, why in said.get('diverged', {}).items()
    }
    if len(group) < 2 or all(run in diverged or done(place) for run, place in places.items()):
      continue
    print_status(
      f'{", ".join(folders)} differ in their learning rate alone, and train first, together where their seeds can'
    )
    try:
      train_all(places, dict(diverged=diverged))
    except Stopped:
      raise
    except Exception as error:  # whatever it is, it may not be one of an arm alone
      print_status(f'they could not: {error}; each goes on alone')
      continue
    for name, folder in folders.items():
      said = dict(
        diverged={seed: why for (of, seed), why in diverged.items() if of == name}, together=[*folders]
      )
      write(folder / 'arm.json', json.dumps(told[name] | dict(name=name) | said, indent=2))


def train_all(places: Mapping[Hashable, RunDir], said: dict[str, Any]) -> list[Hashable]:
  """Trains those runs that are not done, together where they can be; the names of all that came through.

  Args:
    said: of which 'diverged' tells why some did not.

  Raises:
    Stopped: if it was asked to.
  """
  diverged = said.setdefault('diverged', {})
  groups = [[name for name, place in places.items() if name not in diverged and not done(place)]]
  try:
    validate_ensemble(Experiment(next(iter(places.values())).config), jax.process_count())
  except ValueError as error:
    if len(groups[0]) > 1:
      _log.info('one run after another: %s', error)
    groups = [[name] for name in groups[0]]
  for group in filter(None, groups):
    try:
      report = train_ensemble([places[name] for name in group])
      diverged |= {group[i]: why for i, why in report.diverged.items()}
    except Diverged as error:
      diverged |= {name: str(error) for name in group}
    if not all(done(places[name]) for name in group if name not in diverged):
      raise Stopped
  return [name for name in places if name not in diverged]


def done(place: RunDir) -> bool:
  """Whether a run has taken its last step."""
  return reached(place.workdir) >= place.config.training.steps


def of_seeds(arm: Arm, folder: pathlib.Path, seeds: Sequence[int]) -> dict[str, RunDir]:
  """The runs of an arm, by their seeds."""
  return {str(seed): RunDir.from_config(arm.config, seed, folder / f'seed{seed}') for seed in seeds}


def ask(
  arm: Arm, folder: pathlib.Path, seeds: Sequence[int], measures: Mapping[str, Measure], said: dict[str, Any]
) -> None:
  """Asks every seed that came through what it was not asked before.

  Args:
    said: of which 'unmeasured' tells why something could not be.
  """
  prepared, unmeasured = {}, said['unmeasured']
  for seed in seeds:
    if str(seed) in map(str, said.get('diverged', {})):
      continue
    place = folder / f'seed{seed}'
    found = asked(place)
    missing = [text for text in measures if text not in found]
    if not missing:
      continue
    loaded = run.load(place)
    for text in missing:
      if text in unmeasured:
        continue
      try:
        if text not in prepared:
          prepared[text] = measures[text].prepare(loaded)
        found[text] = [dataclasses.asdict(value) for value in prepared[text](loaded.params)]
      except Exception as error:  # whatever it is, the other measures are no worse for it
        unmeasured[text] = f'{type(error).__name__}: {error}'
        (folder / 'error.txt').write_text(traceback.format_exc())
        print_status(
          f'{text} of the arm {arm.name!r} could not be measured: {error}; {folder / "error.txt"} tells where'
        )
        continue
      write(place / 'measured.json', json.dumps(found, indent=2))


def at_best_rate(study: Study, arm: Arm, folder: pathlib.Path, said: dict[str, Any]) -> Arm:
  """The arm with the learning rate of `study.rates` that did best, each by a run of a seed that is not reported.

  Raises:
    Diverged: if it diverged at all of them.
    Stopped: if it was asked to.
  """
  places = {
    f'{rate:g}': RunDir.from_config(with_rate(arm, rate).config, RATE_SEED, folder / f'rate{rate:g}')
    for rate in study.rates
  }
  notes = said.setdefault('rates', {})
  notes['reached'] = {rate: final(places[rate].workdir)[study.metric] for rate in train_all(places, notes)}
  if not notes['reached']:
    raise Diverged(f'it diverged at every learning rate of {study.rates}')
  name = (max if study.higher else min)(notes['reached'], key=notes['reached'].get)
  best = said['rate'] = places[name].config.optimizer.learning_rate
  if best in (min(study.rates), max(study.rates)) and len(study.rates) > 1:
    print_status(
      f'the best learning rate of the arm {arm.name!r} is {best:g}, at the end of {study.rates}: a wider range may do better'
    )
  return with_rate(arm, best)


def with_rate(arm: Arm, rate: float) -> Arm:
  """The arm with another learning rate."""
  config = arm.config.copy_and_resolve_references()
  config.optimizer.learning_rate = rate
  return dataclasses.replace(arm, config=config)


def measure(text: str) -> Measure:
  """The measure that a spec names.

  Raises:
    ValueError: if there is none.
  """
  try:
    return spec.build(text, tfm.studies.measures, Measure)
  except ValueError as error:
    raise ValueError(f'measures={error}') from error


def results(
  study: Study, name: str, arms: Mapping[str, Arm], workdir: pathlib.Path, command: str
) -> dict[str, Any]:
  """What came of a study, so far as it went: the table that `ablation.report` writes."""
  folders = {arm: folder_of(workdir, arm) for arm in arms}
  places = {
    arm: {seed: folder / f'seed{seed}' for seed in range(study.seeds)} for arm, folder in folders.items()
  }
  told = {arm: about(folder) | dict(seconds=spent(folder)) for arm, folder in folders.items()}
  about_study = dict(
    name=name,
    question=study.question,
    literature=study.literature,
    base=study.base,
    against=dict(study.against),
    metric=study.metric,
    costs=[cost for text in study.measures for cost in measure(text).costs],
    lower_is_better=not study.higher,
    match=study.match,
    seeds=list(range(study.seeds)),
    command=command,
    length=arms[study.base].config.data.length,
    seconds=sum(said['seconds'] for said in told.values()),
    jobs=len([*(workdir / 'jobs').glob('*.txt')]),
  )
  found = gathered(about_study, arms, places, told)
  rows = {row['name']: row for row in found['arms']}
  for name in study.arms:
    rows.setdefault(
      name,
      dict(
        name=name,
        changes=dict(study.arms[name]),
        matched={},
        error=None,
        diverged=[],
        untrained=about_study['seeds'],
      ),
    )
  return found | dict(arms=[rows[name] for name in sorted(study.arms, key=lambda name: name != study.base)])


def gathered(
  about_study: Mapping[str, Any],
  arms: Mapping[str, Arm],
  places: Mapping[str, Mapping[int, pathlib.Path]],
  told: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
  """The table of finished runs.

  Args:
    places: the run of every seed, by arm; told: what went wrong, and how long it took, by arm.
  """
  rows, values, curves, data = [], [], [], set()
  for arm in arms.values():
    said, speeds = told[arm.name], []
    notes = [
      f'{text} could not be measured: {ranking.first_line(why)}'
      for text, why in said.get('unmeasured', {}).items()
    ]
    diverged = sorted(int(seed) for seed in said.get('diverged', {}))
    for seed, place in places[arm.name].items():
      lines = metrics.read(place / 'metrics.jsonl')
      curves += [
        dict(arm=arm.name, seed=seed, split=line['split'], step=line['step'], loss=line['loss'])
        for line in lines
        if 'loss' in line
      ]
      if seed in diverged or reached(place) < arm.config.training.steps:
        continue
      speeds += [line['tokens_per_second'] for line in lines if 'tokens_per_second' in line][-1:]
      data.add(run.checkpoint_metadata(place)['corpus'])
      numbers = [dict(metric=metric, x=None, value=value) for metric, value in final(place).items()]
      for value in itertools.chain(*asked(place).values()):
        if why := value.pop('why'):
          notes.append(why)
        else:
          numbers.append(value)
      values += [dict(arm=arm.name, seed=seed) | number for number in numbers]
    rows.append(
      dict(
        name=arm.name,
        changes=dict(arm.changes),
        matched={path: list(ends) for path, ends in arm.matched.items()},
        parameters=arm.parameters,
        flops_per_token=arm.flops,
        memory_bytes=arm.memory,
        tokens_per_second=sum(speeds) / len(speeds) if speeds else None,
        error=said.get('error'),
        diverged=diverged,
        why=next(iter(said.get('diverged', {}).values()), None),
        rate=said.get('rate'),
        untrained=[seed for seed, place in places[arm.name].items() if not (place / 'config.json').exists()],
        rates=said.get('rates'),
        notes=[*dict.fromkeys(notes)],
        seconds=said.get('seconds'),
      )
    )
  made = dict(
    data=', '.join(sorted(data)),
    **made_by({name: told[name].get('made', []) for name in dict.fromkeys(value['arm'] for value in values)}),
  )
  return dict(study=dict(about_study) | made, arms=rows, values=values, curves=curves)


def made_by(of_arms: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[str, str]:
  """The machines, versions and days of all `makers` of some arms, each once, and what is known of the report alone."""
  several = [one for arm in of_arms.values() for one in arm]
  days = sorted({one['date'] for one in several})
  known = {key: '; '.join(dict.fromkeys(one[key] for one in several)) for key in ('machine', 'versions')}
  known['date'] = ' to '.join(dict.fromkeys([*days[:1], *days[-1:]]))
  if unknown := [
    name for name, arm in of_arms.items() if not arm
  ]:  # runs of tfm train, and arms that kept none of it
    here = makers()
    known['written'] = (
      f'{here["date"]}, {here["machine"]}; {here["versions"]}; where and when {", ".join(unknown)} trained was '
      'not kept'
    )
  return known


def makers() -> dict[str, str]:
  """What the numbers of today are made on, and by: machine, versions, date."""
  device = jax.devices()[0]
  cpu = f' of {chips.cpu_model()}' if device.platform == 'cpu' and chips.cpu_model() else ''
  versions = [
    f'{package} {importlib.metadata.version(package)}' for package in ('jax', 'flax', 'optax', 'numpy')
  ]
  return dict(
    machine=f'{jax.device_count()} × {device.device_kind}, {chips.cpu_core_count()} cores{cpu}, {platform.machine()}',
    versions=', '.join([*versions, f'python {platform.python_version()}']),
    date=f'{datetime.date.today():%Y-%m-%d}',
  )


def spent(folder: pathlib.Path) -> float:
  """Seconds of an arm: those of its sessions, or those that its runs counted, which outlast a kill, where they are more."""
  # Runs that trained together counted the same seconds, each in its own folder, and each arm of several has its share.
  counted = {path.read_text() for path in folder.glob(f'*/{goodput.FILE}')}
  seconds = 0.0
  for text in counted:
    with contextlib.suppress(
      ValueError, KeyError, TypeError, AttributeError
    ):  # one that cannot be read tells nothing
      seconds += sum(json.loads(text)['seconds'].values())
  said = about(folder)
  return max(said.get('seconds', 0.0), seconds / len(said.get('together', [folder])))


def final(place: pathlib.Path) -> dict[str, float]:
  """The metrics of the last validation of a run."""
  lines = [line for line in metrics.read(place / 'metrics.jsonl') if line['split'] == 'validation']
  return {name: value for name, value in lines[-1].items() if name not in ('step', 'split')} if lines else {}


def reached(place: pathlib.Path) -> int:
  """The last step that a run has saved; 0 without one."""
  if not (place / 'checkpoints').is_dir():
    return 0
  checkpoints = checkpoint.Checkpoints(place)
  last = checkpoints.latest() or 0
  checkpoints.close()
  return last


def asked(place: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
  """What a run was asked, by the measure's spec, and what it said."""
  path = place / 'measured.json'
  return json.loads(path.read_text()) if path.exists() else {}


def failed(folder: pathlib.Path) -> bool:
  """Whether something of an arm went wrong, when it was last tried."""
  said = about(folder)
  return bool(said.get('error') or said.get('unmeasured'))


def begun(folder: pathlib.Path) -> bool:
  """Whether any run of an arm was."""
  return bool(about(folder)) or any(folder.glob('*/config.json'))


def about(folder: pathlib.Path) -> dict[str, Any]:
  """What is kept of an arm."""
  path = folder / 'arm.json'
  return json.loads(path.read_text()) if path.exists() else {}


def folder_of(workdir: pathlib.Path, name: str) -> pathlib.Path:
  """The folder of an arm."""
  return workdir / 'arms' / folder_name(name)


def write(path: pathlib.Path, text: str) -> None:
  """Whole or not at all: others may read it, and a kill may come."""
  part = path.with_name(f'{path.name}.{os.getpid()}')
  part.write_text(text)
  part.replace(path)
