"""TFDS data sets in array_record: prepared, split, and read without TensorFlow."""

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping

import tensorflow_datasets
from tensorflow_datasets.core.registered import DatasetNotFoundError

from tfm.data.documents import SPLITS


Builder = tensorflow_datasets.core.DatasetBuilder

_log = logging.getLogger(__name__)


def prepare_builder(spec: str, dataset: str, data_dir: str | None) -> Builder:
  """Returns the builder of a TFDS data set that is stored in array_record; prepares the data set if
  necessary.

  Raises:
    ValueError: for the source `spec`, if the data set does not exist or needs TensorFlow.
  """
  try:
    builder = tensorflow_datasets.builder(dataset, data_dir=data_dir)
    if builder.is_prepared():
      if (stored := builder.info.file_format.value) != 'array_record':
        raise ValueError(
          f'{spec} is stored as {stored}, but only array_record can be read without TensorFlow; '
          "prepare it again with file_format='array_record' in another data_dir"
        )
    else:
      with contextlib.redirect_stdout(sys.stderr):
        builder.download_and_prepare(file_format='array_record')
  except (DatasetNotFoundError, ImportError, OSError) as error:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ValueError(f'{spec} cannot be prepared: {reason}') from error
  return builder


def used_splits(spec: str, builder: Builder) -> list[str]:
  """Returns which of train, validation and test a data set has; logs a warning about any other split.

  Raises:
    ValueError: for the source `spec`, if there is no train split.
  """
  sizes = {split: info.num_examples for split, info in builder.info.splits.items()}
  if not sizes.get('train'):
    raise ValueError(f"{spec} has no 'train' split; it has {sorted(sizes)}")
  if unused := sorted(set(sizes) - set(SPLITS)):
    _log.warning('%s: the splits %s are not used; only train, validation and test are', spec, unused)
  return [split for split in SPLITS if sizes.get(split)]


def label_reader(spec: str, builder: Builder, field: str) -> Callable[[Mapping], str]:
  """Returns a function example → label: the class name if the data set has names, otherwise the stored value.

  Raises:
    ValueError: for the source `spec`, if the field is not a single name or number.
  """
  features = builder.info.features
  scalars = [name for name, feature in features.items() if feature.shape == ()]
  if field not in scalars:
    raise ValueError(f'{spec} has no label under {field!r}; it has {scalars}')
  names = getattr(features[field], 'names', None) or ()

  def read_label(example: Mapping) -> str:
    value = example[field]
    if isinstance(value, bytes):
      return value.decode()
    # TFDS gives test splits without labels the class -1.
    return names[value] if 0 <= value < len(names) else str(value)

  return read_label
