"""What differs between two configs, and what of it changes the result."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfm.config.schema import INHERITING, leaves


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
  'training.stop_when',
  'training.save_every',
  'training.local_checkpoint_dir',
  'training.save_local_every',
  'training.evaluation_batches',
  'training.keep_checkpoints',
  'training.profile',
  'training.sinks',
  'training.loss_chunk',
  'model.remat',
  'optimizer.offload',
  'model.kernel',
  'data.reader_threads',
)


# The fields that set the learning rate of each step.
RATE_FIELDS = 'optimizer.learning_rate', 'optimizer.warmup', 'optimizer.schedule', 'training.steps'


def list_differences(old: Mapping, new: Mapping, step: int | None = None) -> list[str]:
  """One line per field that differs and changes the result: `field: old → new`.

  Args:
    step: what a run with the config `old` has trained. The schedule may then change in what is to come:
      `RATE_FIELDS` are not listed if the learning rates up to this step stay the same.
  """
  before, after = dict(leaves(old)), dict(leaves(new))
  free = FREE_FIELDS
  if step is not None and any(before[field] != after[field] for field in RATE_FIELDS):
    free += RATE_FIELDS if have_same_rates(before, after, step) else ()
  lines = []
  for path in dict.fromkeys((*before, *after)):
    a, b = before.get(path), after.get(path)
    a, b = (tuple(x) if isinstance(x, list) else x for x in (a, b))
    if a != b and not is_free(path, free):
      lines.append(f'{path}: {a!r} → {b!r}')
  return lines


def is_free(path: str, free: Sequence[str] = FREE_FIELDS) -> bool:
  """Whether a field does not change the result; `free` holds such fields and sections."""
  return any(path == f or path.startswith(f'{f}.') or _block_field(path, f) for f in free)


def have_same_rates(old: Mapping[str, Any], new: Mapping[str, Any], steps: int) -> bool:
  """Whether the first steps of two configs, each path → value, have the same learning rates."""
  from tfm.training.schedule import learning_rates  # it imports JAX

  old, new = (
    learning_rates(*(fields[path] for path in (*RATE_FIELDS, 'model.width')), steps) for fields in (old, new)
  )
  return bool((old == new).all())


def _block_field(path: str, free: str) -> bool:
  """Whether `path` is a block section's version of a free field of the model."""
  return path.startswith(INHERITING) and free == f'model.{path.rpartition(".")[2]}'
