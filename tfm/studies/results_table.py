"""The results of a study as one table of arms, values and curves, and where the numbers come from."""

import datetime
import importlib.metadata
import itertools
import pathlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from tfm.parallel import chip_specs
from tfm.runs import load
from tfm.runs.run_dir import RunDir
from tfm.studies import store
from tfm.studies.arms import Arm
from tfm.studies.measures.protocol import build_measure
from tfm.studies.report.wording import first_line
from tfm.studies.study import Study
from tfm.training import metrics


def collect_study(
  study: Study, name: str, arms: Mapping[str, Arm], workdir: pathlib.Path, command: str
) -> dict[str, Any]:
  """The results of a study so far, with a row for each arm that has not started: the input of `report.page`.

  Args:
    name: the study's file; command: the command line that the report quotes.
  """
  folders = {arm: store.arm_dir(workdir, arm) for arm in arms}
  run_dirs = {
    arm: {seed: folder / f'seed{seed}' for seed in range(study.seeds)} for arm, folder in folders.items()
  }
  records = {
    arm: store.read_arm(folder) | dict(seconds=store.elapsed_seconds(folder))
    for arm, folder in folders.items()
  }
  header = dict(
    name=name,
    question=study.question,
    literature=study.literature,
    base=study.base,
    against=dict(study.against),
    metric=study.metric,
    costs=[metric for text in study.measures for metric in build_measure(text).cost_metrics],
    lower_is_better=not study.higher_is_better,
    equal_within=study.equal_within,
    solved_at=study.solved_at,
    learning_rates=list(study.learning_rates),
    runs_per_rate=study.runs_per_rate,
    scales=list(study.scales),
    tasks=list(study.tasks),
    published={arm: list(pair) for arm, pair in study.published.items()},
    match=study.match,
    seeds=list(range(study.seeds)),
    command=command,
    length=arms[study.base].config.data.length,
    seconds=sum(record['seconds'] for record in records.values()),
    jobs=len([*(workdir / 'jobs').glob('*.txt')]),
  )
  results = collect_runs(header, arms, run_dirs, records)
  rows = {row['name']: row for row in results['arms']}
  for arm in study.arms:
    rows.setdefault(
      arm,
      dict(
        name=arm,
        changes=dict(study.arms[arm]),
        matched={},
        error=None,
        diverged=[],
        untrained=header['seeds'],
      ),
    )
  order = sorted(study.arms, key=lambda arm: arm != study.base)
  return results | dict(arms=[rows[arm] for arm in order])


def collect_runs(
  header: Mapping[str, Any],
  arms: Mapping[str, Arm],
  run_dirs: Mapping[str, Mapping[int, pathlib.Path]],
  records: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
  """The results of finished runs: study, arms, values and curves.

  Args:
    header: the fields of the study; run_dirs: arm → seed → folder; records: arm → content of its arm.json.
  """
  rows, values, curves, corpora = [], [], [], set()
  for arm in arms.values():
    record, speeds = records[arm.name], []
    notes = [
      f'{text} could not be measured: {first_line(reason)}'
      for text, reason in record.get('unmeasured', {}).items()
    ]
    diverged = sorted(int(seed) for seed in record.get('diverged', {}))
    for seed, run_dir in run_dirs[arm.name].items():
      lines = metrics.read(run_dir / 'metrics.jsonl')
      curves += [
        dict(arm=arm.name, seed=seed, split=line['split'], step=line['step'], loss=line['loss'])
        for line in lines
        if 'loss' in line
      ]
      if seed in diverged or not RunDir.from_config(arm.config, seed, run_dir).is_finished():
        continue
      speeds += [line['tokens_per_second'] for line in lines if 'tokens_per_second' in line][-1:]
      corpora.add(load.checkpoint_metadata(run_dir)['corpus'])
      of_run = [*_read_values(run_dir, notes)]
      if arm.experiment.stop_rule.metric:  # how soon it ended is a result, too
        of_run.append(dict(metric='steps', x=None, value=lines[-1]['step']))
      values += [dict(arm=arm.name, seed=seed) | value for value in of_run]
    rows.append(
      dict(
        name=arm.name,
        changes=dict(arm.changes),
        matched={path: list(ends) for path, ends in arm.matched.items()},
        parameters=arm.parameters,
        flops_per_token=arm.flops,
        tokens=arm.tokens,
        steps=arm.config.training.steps,
        memory_bytes=arm.memory,
        tokens_per_second=sum(speeds) / len(speeds) if speeds else None,
        error=record.get('error'),
        diverged=diverged,
        why=next(iter(record.get('diverged', {}).values()), None),
        rate=record.get('rate'),
        untrained=[
          seed for seed, run_dir in run_dirs[arm.name].items() if not (run_dir / 'config.json').exists()
        ],
        rates=record.get('rates'),
        notes=[*dict.fromkeys(notes)],
        seconds=record.get('seconds'),
      )
    )
  measured = dict.fromkeys(value['arm'] for value in values)
  origin = merge_provenance({name: records[name].get('made', []) for name in measured})
  study = dict(header) | dict(data=', '.join(sorted(corpora))) | origin
  return dict(study=study, arms=rows, values=values, curves=curves)


def _read_values(run_dir: pathlib.Path, notes: list[str]) -> Iterator[dict[str, Any]]:
  """The values of a finished run; the reasons for missing ones are appended to `notes`."""
  for metric, value in store.final_metrics(run_dir).items():
    yield dict(metric=metric, x=None, value=value)
  for value in itertools.chain(*store.read_measured(run_dir).values()):
    if reason := value.pop('why'):
      notes.append(reason)
    else:
      yield value


def merge_provenance(of_arms: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[str, str]:
  """The machines, versions and dates of all arms, each once.

  Arms without a record (runs of tfm train, and old studies) are listed under `written`, with the machine of
  the report.
  """
  entries = [entry for arm in of_arms.values() for entry in arm]
  dates = sorted({entry['date'] for entry in entries})
  merged = {key: '; '.join(dict.fromkeys(entry[key] for entry in entries)) for key in ('machine', 'versions')}
  merged['date'] = ' to '.join(dict.fromkeys([*dates[:1], *dates[-1:]]))
  if unknown := [name for name, arm in of_arms.items() if not arm]:
    current = describe_machine()
    merged['written'] = (
      f'{current["date"]}, {current["machine"]}; {current["versions"]}; no record of the machine and date of '
      f'{", ".join(unknown)}'
    )
  return merged


def describe_machine() -> dict[str, str]:
  """Machine, package versions and today's date."""
  device = jax.devices()[0]
  cpu = f' of {chip_specs.cpu_model()}' if device.platform == 'cpu' and chip_specs.cpu_model() else ''
  versions = [
    f'{package} {importlib.metadata.version(package)}' for package in ('jax', 'flax', 'optax', 'numpy')
  ]
  count = chip_specs.cpu_core_count()  # of this process: tfm ablate --jobs divides a machine's cores
  cores = f'{count} core{"s" if count > 1 else ""}{cpu}'
  return dict(
    machine=f'{jax.device_count()} × {device.device_kind}, {cores}, {platform.machine()}',
    versions=', '.join([*versions, f'python {platform.python_version()}']),
    date=f'{datetime.date.today():%Y-%m-%d}',
  )
