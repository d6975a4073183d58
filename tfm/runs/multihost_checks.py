"""What processes must agree on before they train, and what the configs of an ensemble may differ in."""

from collections.abc import Sequence

import jax

from tfm.config.assemble import Experiment
from tfm.config.schema import leaves
from tfm.config.validate import validate_ensemble
from tfm.errors import require
from tfm.parallel import processes
from tfm.runs.run_dir import RunDir


# The fields in which the runs of an ensemble may differ.
ENSEMBLE_FIELDS = 'seed', 'optimizer.learning_rate'


def require_equal_runs(run_dirs: Sequence[RunDir]) -> None:
  """Refuses, in all processes, configs and directories that differ between processes."""
  fields = {f'config.{path}': value for path, value in leaves(run_dirs[0].config)}
  processes.require_equal({'which fields --config has': [*fields]})
  names = [run_dir.list_checkpoint_names() for run_dir in run_dirs]
  processes.require_equal(fields | {f'what --workdir={run_dirs[0].workdir} holds': names})


def require_ensemble_configs(experiment: Experiment, run_dirs: Sequence[RunDir]) -> None:
  """Refuses runs that cannot train in one step: their configs differ in more than `ENSEMBLE_FIELDS`, or use a
  mesh.

  Args:
    experiment: of the first run.
  """
  first = dict(leaves(run_dirs[0].config))
  for run_dir in run_dirs:
    other = dict(leaves(run_dir.config))
    for path in first | other:
      require(
        path in ENSEMBLE_FIELDS or first.get(path) == other.get(path),
        f'config.{path} is {first.get(path)!r} in one run and {other.get(path)!r} in another, and the runs '
        'of an '
        f'ensemble may differ only in {" and ".join(ENSEMBLE_FIELDS)}; train them one after another',
      )
  if len(run_dirs) > 1:
    validate_ensemble(experiment, jax.process_count())
