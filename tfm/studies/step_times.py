"""The time of a training step of each arm, for studies that match it: measured once and stored."""

import pathlib
from collections.abc import Mapping

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.errors import parsing, require
from tfm.studies import store
from tfm.studies.results_table import describe_machine
from tfm.studies.study import Study


def measure_step_seconds(
  study: Study, workdir: pathlib.Path, save: bool, arms: Mapping[str, Experiment]
) -> dict[str, float]:
  """Seconds of a training step of each arm, for match='time'.

  The time of each arm is measured once, alternating with the base, and stored in its time.json. So every
  process and every later call match the arms alike.

  Args:
    save: whether new times are stored.

  Raises:
    ValueError: if a stored time belongs to another config.
  """
  base, times = arms[study.base].config, {}
  folders = {name: store.arm_dir(workdir, name) for name in arms if name != study.base}
  for name, folder in folders.items():
    if time_of_arm := store.read_time(folder):
      times[name], path = time_of_arm, folder / 'time.json'
      for field, config in (('base', base), ('config', arms[name].config)):
        with parsing(path, 'the time of an arm'):
          old = resolve_config(complete(time_of_arm[field]))
        old.training.steps = config.training.steps
        lines = list_differences(old.to_dict(), config.to_dict())
        require(
          not lines,
          f'{path} holds the time of another config: {"; ".join(lines)}; set it back or use a new --workdir',
        )
  missing = {name: arms[name] for name in folders if name not in times}
  measured = estimate.measure_steps_in_turns(arms[study.base], missing, study.seeds) if missing else {}
  for name, (seconds, base_seconds) in measured.items():
    times[name] = dict(
      seconds=seconds,
      base_seconds=base_seconds,
      machine=describe_machine()['machine'],
      config=arms[name].config.to_dict(),
      base=base.to_dict(),
    )
    if save:
      times[name] = store.write_time(folders[name], times[name])
  # Only the ratio to the base counts: other load on the machine slows both.
  unit = next(iter(times.values()))['base_seconds'] if times else 1.0
  return {study.base: unit} | {
    name: unit * entry['seconds'] / entry['base_seconds'] for name, entry in times.items()
  }
