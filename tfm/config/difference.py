"""What differs between two configs, and what of it changes the result."""

from collections.abc import Mapping

from tfm.config.schema import INHERITING, leaves
from tfm.spec import parse
from tfm.training.schedule import ENDLESS


# A resumed run may change these fields: they do not change what is computed.
FREE_FIELDS = (
  'mesh',
  'slices',
  'pipeline',
  # Presets choose how a step is computed. Other options may be anything, such as less exact functions.
  'compiler.flags',
  'rules',
  'decoding',
  'training.log_every',
  'training.evaluate_every',
  'training.save_every',
  'training.local_checkpoint_dir',
  'training.save_local_every',
  'training.evaluation_batches',
  'training.keep_checkpoints',
  'training.profile',
  'training.loss_chunk',
  'model.remat',
  'model.kernel',
  'data.reader_threads',
)


def list_differences(old: Mapping, new: Mapping) -> list[str]:
  """One line per field that differs and changes the result: `field: old → new`.

  The number of steps matters to the schedules that look at it.
  """
  endless = parse(old['optimizer']['schedule']).name in ENDLESS
  before, after = dict(leaves(old)), dict(leaves(new))
  lines = []
  for path in dict.fromkeys((*before, *after)):
    free = any(path == f or path.startswith(f'{f}.') or _block_field(path, f) for f in FREE_FIELDS)
    free |= endless and path == 'training.steps'
    a, b = before.get(path), after.get(path)
    a, b = (tuple(x) if isinstance(x, list) else x for x in (a, b))
    if a != b and not free:
      lines.append(f'{path}: {a!r} → {b!r}')
  return lines


def _block_field(path: str, free: str) -> bool:
  """Whether `path` is a block section's version of a free field of the model."""
  return path.startswith(INHERITING) and free == f'model.{path.rpartition(".")[2]}'
