"""Where a run starts: at step 0, or at the newest checkpoint that every run of the step and every process
has."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfm.errors import require
from tfm.runs.run_dir import RunDir
from tfm.training.local_checkpoints import LocalCheckpoints


@dataclasses.dataclass(frozen=True)
class ResumePoint:
  """The step to start after, and the checkpoints that hold it.

  Attributes:
    step: 0 for a new run.
    metadata: the JSON part of each run's checkpoint; empty for a new run.
    local: the local checkpoints, or None if the config has none.
    from_local: whether `step` is restored from them.
    saved_steps: of each run, all of them.
  """

  step: int
  metadata: Sequence[Mapping[str, Any]]
  local: LocalCheckpoints | None
  from_local: bool
  saved_steps: Sequence[set[int]]


def find_resume_point(run_dirs: Sequence[RunDir]) -> ResumePoint:
  """The newest step that all runs have saved, or a newer local checkpoint.

  Raises:
    ValueError: for a directory of imported weights, and if the checkpoint's config differs from the run's.
  """
  config, saved_steps = run_dirs[0].config, [run_dir.saved_steps() for run_dir in run_dirs]
  # A kill may come between the saves of two runs.
  step = max(set.intersection(*saved_steps), default=0)
  for run_dir, steps in zip(run_dirs, saved_steps):
    require(
      steps != {0},
      f'--workdir={run_dir.workdir} holds weights of tfm import, which training would overwrite; train in '
      f'another directory with --config.init_from={run_dir.workdir}',
    )
  folder = config.training.local_checkpoint_dir
  local = LocalCheckpoints(folder, run_dirs[0].workdir) if folder else None
  if local and (newer := local.find_newer(step, config)):
    metadata = run_dirs[0].require_same_config(local.read_metadata(newer), newer)
    return ResumePoint(newer, [metadata], local, True, saved_steps)
  metadata = [run_dir.checkpoint_metadata(step) for run_dir in run_dirs] if step else []
  return ResumePoint(step, metadata, local, False, saved_steps)
