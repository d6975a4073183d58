"""TFDS data sets in array_record: prepared, split, and read without TensorFlow."""

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping

import tensorflow_datasets
from tensorflow_datasets.core.registered import DatasetNotFoundError

from tfm.data import corpus


Builder = tensorflow_datasets.core.DatasetBuilder

_log = logging.getLogger(__name__)


def prepared(spec: str, dataset: str, data_dir: str | None) -> Builder:
  """A TFDS data set that stands in array_record, or is put so there.

  Raises:
    ValueError: for the source `spec`, if there is no such set or it needs TensorFlow.
  """
  try:
    builder = tensorflow_datasets.builder(dataset, data_dir=data_dir)
    if builder.is_prepared():
      if (stored := builder.info.file_format.value) != 'array_record':
        raise ValueError(
          f'{spec} is stored as {stored}, but only array_record is read without TensorFlow; '
          "prepare it again with file_format='array_record' in another data_dir"
        )
    else:
      with contextlib.redirect_stdout(sys.stderr):
        builder.download_and_prepare(file_format='array_record')
  except (DatasetNotFoundError, ImportError, OSError) as error:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ValueError(f'{spec} cannot be prepared here: {reason}') from error
  return builder


def splits(spec: str, builder: Builder) -> list[str]:
  """Those of train, validation and test that a set has; a warning tells of others.

  Raises:
    ValueError: for the source `spec`, if there is no train.
  """
  sizes = {split: info.num_examples for split, info in builder.info.splits.items()}
  if not sizes.get('train'):
    raise ValueError(f"{spec} has no 'train' split; it has {sorted(sizes)}")
  if unused := sorted(set(sizes) - set(corpus.SPLITS)):
    _log.warning('%s: the splits %s are not used; only train, validation and test are', spec, unused)
  return [split for split in corpus.SPLITS if sizes.get(split)]


def label(spec: str, builder: Builder, field: str) -> Callable[[Mapping], str]:
  """example → its label: the name of a class where the set has names, and else what stands there.

  Raises:
    ValueError: for the source `spec`, if the field is not one name or number.
  """
  features = builder.info.features
  single = [name for name, feature in features.items() if feature.shape == ()]
  if field not in single:
    raise ValueError(f'{spec} has no label under {field!r}; it has {single}')
  names = getattr(features[field], 'names', None) or ()

  def sow_attention(example):
    value = example[field]
    if isinstance(value, bytes):
      return value.decode()
    # Of test splits without labels TFDS says -1, which is no class.
    return names[value] if 0 <= value < len(names) else str(value)

  return tell
