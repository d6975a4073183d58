"""The working directory of one run: its config, its saved steps, and whether a checkpoint in it fits the
config."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from tfm.config.difference import RATE_FIELDS, list_differences
from tfm.config.load import to_json
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.data.file_hashes import wait_until_visible
from tfm.errors import require
from tfm.parallel import processes
from tfm.training.atomic_files import write_atomically
from tfm.training.checkpoint import Checkpoints
from tfm.training.metrics import read_validations
from tfm.training.stop_rule import parse_stop_rule


@dataclasses.dataclass(frozen=True)
class RunDir:
  """One run and the directory that holds its files.

  Attributes:
    config: resolved, with the run's seed.
    workdir: the directory; it need not exist yet.
  """

  config: ConfigDict
  workdir: pathlib.Path

  @classmethod
  def from_config(cls, config: ConfigDict, seed: int, workdir: str | pathlib.Path) -> 'RunDir':
    """The run of a copy of `config` with another seed."""
    config = config.copy_and_resolve_references()
    config.seed = seed
    return cls(config, pathlib.Path(workdir))

  def saved_steps(self) -> set[int]:
    """The steps of its complete checkpoints."""
    with self._open_checkpoints() as checkpoints:
      return set(checkpoints.steps() if checkpoints else ())

  def is_finished(self) -> bool:
    """Whether it has saved its last step, or its validations ended it before."""
    step, t = max(self.saved_steps(), default=0), self.config.training
    return step >= t.steps or parse_stop_rule(t.stop_when)(read_validations(self.workdir, step))

  def list_checkpoint_names(self) -> list[str] | None:
    """The names in checkpoints/, of complete and incomplete ones; None without that directory."""
    folder = self.workdir / 'checkpoints'
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else None

  def checkpoint_metadata(self, step: int) -> dict[str, Any]:
    """The JSON part of a checkpoint.

    Raises:
      ValueError: as `require_same_config`.
    """
    with self._open_checkpoints() as checkpoints:
      return self.require_same_config(checkpoints.read_metadata(step), step)

  def require_same_config(self, metadata: dict[str, Any], step: int) -> dict[str, Any]:
    """Returns the metadata of a step's checkpoint if training can resume from it under this run's config.

    The number of steps may grow, and the schedule change, if the learning rates up to this step stay the
    same: under a constant schedule, or in the stable stage of wsd.

    Raises:
      ValueError: if the configs differ in a field that changes results, or the run has fewer steps.
    """
    # Fields that are newer than the checkpoint had their defaults then.
    old, steps = resolve_config(complete(metadata['config'])), self.config.training.steps
    lines = list_differences(old.to_dict(), self.config.to_dict(), step)
    continuing = ''
    if any(line.partition(':')[0] in RATE_FIELDS for line in lines):
      continuing = (
        f'; its {step} steps had the learning rates of the schedule {old.optimizer.schedule!r} over '
        f'{old.training.steps} steps: to train on with others, add '
        f'--config.init_from={self.workdir} to start a new run from its parameters'
      )
    require(
      not lines,
      f'--config differs from the checkpoint in {self.workdir} in fields that change results; '
      f'set them back or train in a new --workdir{continuing}:\n  ' + '\n  '.join(lines),
    )
    require(
      steps >= step,
      f'config.training.steps={steps} is less than the {step} steps that --workdir={self.workdir} has '
      'trained; use as many or more',
    )
    return metadata

  def require_same_data(self, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuses to resume on documents or tokenizers other than those of the checkpoint.

    Args:
      saved, current: metadata of the checkpoint and of this process, with the corpus hash and the tokenizers.
    """
    data = self.config.data
    require(
      saved['corpus'] == current['corpus'],
      f'config.data.source={data.source!r} holds other data than those the checkpoint in {self.workdir} '
      'was trained on; restore them or train in a new --workdir',
    )
    for name in ('tokenizer', 'source_tokenizer'):
      require(
        saved.get(name) == current[name],
        f'config.data.{name}={data[name]!r} differs from the tokenizer of the checkpoint in {self.workdir}; '
        'restore the cached one or train in a new --workdir',
      )

  def write_config(self) -> None:
    """Creates the directory and writes config.json.

    Raises:
      ValueError: in all processes, if one of them does not see what process 0 wrote.
    """
    path, text = self.workdir / 'config.json', to_json(self.config)
    if processes.is_main_process():
      self.workdir.mkdir(parents=True, exist_ok=True)
      write_atomically(path, text)
    processes.barrier()
    try:
      wait_until_visible(path)
      content = path.read_text(encoding='utf-8')
    except FileNotFoundError:
      content = 'no config.json'
    processes.require_equal({f'what --workdir={self.workdir} holds': content})

  @contextlib.contextmanager
  def _open_checkpoints(self) -> Iterator[Checkpoints | None]:
    if not (self.workdir / 'checkpoints').is_dir():
      yield None
      return
    with contextlib.closing(Checkpoints(self.workdir)) as checkpoints:
      yield checkpoints
