"""Reads the tensors of a checkpoint folder into parameters, one at a time, and writes them back."""

import functools
import json
import logging
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import einops
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tfm.errors import importing_extra, parsing, require, suggest
from tfm.hf.families.protocol import Part, Weight
from tfm.hf.tensor_files import INDEX, SINGLE_FILE
from tfm.parallel import host_arrays
from tfm.shapes import Array, PyTree


_log = logging.getLogger(__name__)
PART = 2**20  # numbers that are examined at once, so that no second copy of a tensor is in memory
# Substrings of tensor names in old checkpoints → the current ones.
OLD_NAMES = (
  ('LayerNorm.gamma', 'LayerNorm.weight'),
  ('LayerNorm.beta', 'LayerNorm.bias'),
  # DeBERTa's published checkpoints and classes use different names.
  ('lm_predictions.lm_head.dense', 'cls.predictions.transform.dense'),
  ('lm_predictions.lm_head.bias', 'cls.predictions.bias'),
  ('lm_predictions.lm_head.LayerNorm', 'cls.predictions.transform.LayerNorm'),
)


class CheckpointTensors:
  """The tensors of `model.safetensors`, or of the files that its index lists; each is read on demand."""

  def __init__(self, folder: pathlib.Path):
    """Opens a folder.

    Raises:
      ValueError: if the folder has no such file, or one that is not readable.
    """
    self.folder, single, index = folder, folder / SINGLE_FILE, folder / INDEX
    if index.is_file():
      files = _read_index(index)
    elif single.is_file():
      with parsing(single, 'safetensors'), _open_tensors(single) as file:
        files = dict.fromkeys(file.keys(), SINGLE_FILE)
    else:
      raise ValueError(
        f'{folder} has neither {SINGLE_FILE} nor {INDEX}; use a checkpoint in the safetensors format'
      )
    for name in sorted(set(files.values())):
      if not (folder / name).is_file():
        raise ValueError(f'{folder} lacks {name}, which {INDEX} lists')
    self._files = {_current_name(name): (file, name) for name, file in files.items()}

  @property
  def names(self) -> tuple[str, ...]:
    return tuple(self._files)

  def read(self, name: str) -> np.ndarray:
    """Reads a tensor into new memory.

    Raises:
      ValueError: for a file that is not readable.
    """
    file, stored_name = self._files[name]
    with parsing(self.folder / file, 'safetensors'), _open_tensors(self.folder / file) as reader:
      return reader.get_tensor(stored_name)

  def read_weight(self, name: str) -> np.ndarray:
    """Reads a tensor of parameters.

    Raises:
      ValueError: if its numbers are not floating-point, or not finite.
    """
    tensor = self.read(name)
    require(
      jnp.issubdtype(tensor.dtype, jnp.floating),
      f'{self.folder} has {name!r} as {tensor.dtype}, and parameters are floating-point numbers; convert it '
      'to float32, bfloat16 or float16',
    )
    require(
      all(is_finite(part) for part in np.array_split(tensor.ravel(), 1 + tensor.size // PART)),
      f'{self.folder} has numbers in {name!r} that are NaN or infinite in float32; it is damaged',
    )
    return tensor

  def are_equal(self, one: str, other: str) -> bool:
    """Whether two tensors are equal."""
    return np.array_equal(self.read(one), self.read(other))

  def merge_duplicates(self, names: Sequence[str]) -> None:
    """Keeps one of the stored tensors among `names`, under the first name.

    Raises:
      ValueError: if the tensors differ.
    """
    stored = [name for name in names if name in self._files]
    for other in stored[1:]:
      if not self.are_equal(stored[0], other):
        raise ValueError(
          f'{self.folder} has {stored[0]!r} and {other!r}, which differ, and its config ties them; use an '
          'output of its own (tie_word_embeddings=false in config.json), or remove one of them'
        )
      del self._files[other]
    if stored:
      self._files[names[0]] = self._files.pop(stored[0])

  def remove_constant(self, name: str, values: np.ndarray) -> None:
    """Removes a tensor, if stored, after comparing it with the constant that it must hold.

    The tolerance is 1e-5 in float32 and 1e-2 in 16-bit types.

    Raises:
      ValueError: if it holds other values.
    """
    if name not in self._files:
      return
    tensor = self.read(name)
    tolerance = 1e-5 if tensor.dtype == np.float32 else 1e-2
    if tensor.shape != values.shape or not np.abs(tensor.astype(np.float32) - values).max() <= tolerance:
      raise ValueError(f"{self.folder}: the tensor {name!r} differs from its family's constant")
    del self._files[name]


def is_finite(numbers: np.ndarray) -> bool:
  """Whether all are finite in float32, the widest type of a parameter."""
  with np.errstate(over='ignore'):
    return bool(np.isfinite(numbers.astype(np.float32, copy=False)).all())


def _open_tensors(file: pathlib.Path):
  """Opens a file of tensors, as a context that closes it."""
  with importing_extra('hub'):
    import safetensors
  return safetensors.safe_open(file, 'numpy')


def _read_index(index: pathlib.Path) -> dict[str, str]:
  """Tensor name → file, of the index of a checkpoint in several files."""
  with parsing(index, 'the index of a checkpoint'):
    content = json.loads(index.read_text(encoding='utf-8'))
    files = content.get('weight_map') if isinstance(content, dict) else None
    require(isinstance(files, dict) and bool(files), 'its weight_map lists no tensor')
    for name, file in files.items():
      require(
        isinstance(file, str) and file == pathlib.PurePath(file).name,
        f'{name!r} is in {file!r}, which is not the name of a file in the same folder',
      )
  return files


def load_params(
  tensors: CheckpointTensors,
  weights: Iterable[Weight],
  target: PyTree,
  prefix: str = '',
  ignored_tensors: str = r'$^',
  unused_tensors: str = r'$^',
) -> PyTree:
  """Reads tensors into parameters, one at a time, each cast and placed as `target` states.

  Peak host memory beyond the parameters is little more than one tensor.

  Args:
    target: `ShapeDtypeStruct`s with shardings.
    prefix, ignored_tensors, unused_tensors: as in `Family`.

  Raises:
    ValueError: for a tensor that is missing, unexpected or of the wrong shape, and a parameter without a
      tensor.
  """
  weights, available = list(weights), set(tensors.names)
  names = {name for weight in weights for name in weight.tensors}
  stripped = {name: name.removeprefix(prefix) for name in names}
  without_prefix = bool(prefix) and not any(name in available for name in names if name.startswith(prefix))
  stored = {name: stripped[name] if without_prefix else name for name in names}
  if missing := sorted(name for name in names if stored[name] not in available):
    raise ValueError(
      f'{tensors.folder} has no tensor {stored[missing[0]]!r}, one of {len(missing)} that are missing; '
      f'{suggest(stored[missing[0]], sorted(available))}'
    )
  ignored = re.compile(ignored_tensors)
  extra = sorted(name for name in available - set(stored.values()) if not ignored.fullmatch(name))
  if unused := [name for name in extra if re.fullmatch(unused_tensors, name)]:
    _log.warning('%s: skipped tensors that do not change the output: %s', tensors.folder, ', '.join(unused))
  if extra := [name for name in extra if name not in unused]:
    raise ValueError(
      f'{tensors.folder} has the tensor {extra[0]!r}, one of {len(extra)} that this model does not use'
    )

  targets = {join_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(target)}
  params, filled = {}, dict.fromkeys(targets, 0)

  def load(weight):  # a function, so that a tensor is freed before the next one is read
    arrays = [tensors.read_weight(stored[name]) for name in weight.tensors]
    for path, index, array in _convert(tensors.folder, stored[weight.tensors[0]], weight, arrays):
      if path not in targets:
        raise ValueError(
          f'{tensors.folder}: {weight.tensors[0]!r} maps to {path}, and the model has no such parameter; '
          f'{suggest(path, targets)}'
        )
      leaf = targets[path]
      shape = leaf.shape if index is None else leaf.shape[1:]
      if array.shape != shape:
        raise ValueError(
          f'{tensors.folder}: {weight.tensors[0]!r} has shape {array.shape} as {path}, and the model '
          f'requires {shape}'
        )
      params[path] = _place(params.get(path), array, index, leaf)
      filled[path] += array.size

  for weight in weights:
    load(weight)
  for path, leaf in targets.items():
    if filled[path] != math.prod(leaf.shape):
      raise ValueError(f'no tensor for {"all of " if filled[path] else ""}the parameter {path}')
  return jax.tree_util.tree_map_with_path(lambda path, _: params[join_path(path)], target)


def iterate_tensors(weights: Iterable[Weight], params: PyTree) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (name, tensor) of the parameters, one tensor at a time."""
  leaves = {join_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
  for weight in weights:
    yield from zip(weight.tensors, convert_to_tensors(weight, lambda path: _get(leaves, path)))


def _convert(folder: pathlib.Path, name: str, weight: Weight, arrays: Sequence[np.ndarray]):
  """`convert_to_params`, whose errors name the folder and the tensor."""
  with parsing(folder, f'a checkpoint of this family ({name!r})'):
    yield from convert_to_params(weight, arrays)


def convert_to_params(
  weight: Weight, arrays: Sequence[np.ndarray]
) -> Iterator[tuple[str, int | None, np.ndarray]]:
  """Yields (path, index along the stacked layers or None, values) of each parameter that the tensors hold."""
  x = arrays[0] if isinstance(weight.names, str) else np.stack(arrays)
  if weight.skip_rows:
    x = x[weight.skip_rows :]
  if weight.pattern:
    x = _rearrange(x, weight)
  if weight.scale != 1 or weight.offset:
    x = (weight.scale * x.astype(np.float32) + weight.offset).astype(np.float32)
  for part, entries in zip(weight.parts, _split(weight, x)):
    yield *split_layer_index(part.path), entries


def convert_to_tensors(weight: Weight, get: Callable[[str], np.ndarray]) -> Sequence[np.ndarray]:
  """The tensors that hold the parameters of a weight."""
  x = (
    get(weight.paths)
    if isinstance(weight.paths, str)
    else np.concatenate([_unsplit(part, get(part.path)) for part in weight.parts])
  )
  if weight.scale != 1 or weight.offset:
    x = (x.astype(np.float32) - weight.offset) / weight.scale
  if weight.pattern:
    x = _invert_rearrange(x, weight.pattern, weight.sizes)
  if weight.skip_rows:
    x = np.concatenate([np.zeros((weight.skip_rows, *x.shape[1:]), x.dtype), x])
  return [x] if isinstance(weight.names, str) else list(x)


def _rearrange(x: np.ndarray, weight: Weight) -> np.ndarray:
  """The tensors of a parameter in the order of its axes."""
  try:
    return einops.rearrange(x, weight.pattern, **weight.sizes)
  except einops.EinopsError as error:
    sizes = ', '.join(f'{axis}={size}' for axis, size in weight.sizes.items())
    raise ValueError(
      f'its shape {x.shape} is not {weight.pattern.split("->")[0].strip()!r}' + f' with {sizes}' * bool(sizes)
    ) from error


def _invert_rearrange(x: np.ndarray, pattern: str, sizes: Mapping[str, int]) -> np.ndarray:
  """Applies the inverse of a rearrangement."""
  left, right = pattern.split('->')
  return einops.rearrange(x, f'{right} -> {left}', **sizes)


def _split(weight: Weight, x: np.ndarray) -> Iterator[np.ndarray]:
  if isinstance(weight.paths, str):
    yield x
    return
  start, count = 0, sum(part.count for part in weight.parts)
  if count != len(x):
    raise ValueError(f'{weight.tensors[0]!r} has {len(x)} entries and its parameters use {count}')
  for part in weight.parts:
    entries = x[start : start + part.count]
    yield einops.rearrange(entries, part.pattern, **part.sizes) if part.pattern else entries[0]
    start += part.count


def _unsplit(part: Part, x: np.ndarray) -> np.ndarray:
  return _invert_rearrange(x, part.pattern, part.sizes) if part.pattern else x[None]


def split_layer_index(path: str) -> tuple[str, int | None]:
  """`a/b[3]/c` → (`a/b/c`, 3)."""
  if not (match := re.search(r'\[(\d+)\]', path)):
    return path, None
  return path.replace(match[0], ''), int(match[1])


def join_path(path) -> str:
  """The keys of a pytree path, joined by slashes."""
  return '/'.join(str(key.key) for key in path)


def _place(buffer: Array | None, array: np.ndarray, index: int | None, leaf: jax.ShapeDtypeStruct) -> Array:
  """Places values on their devices and blocks, so that pending transfers do not accumulate in host memory."""
  if index is None:
    return jax.block_until_ready(host_arrays.place(array.astype(leaf.dtype, copy=False), leaf.sharding))
  if buffer is None:
    buffer = _zeros(leaf.shape, leaf.dtype, leaf.sharding)()
  # Transferred before the cast, non-contiguous or 16-bit: no second copy on the host.
  return jax.block_until_ready(
    _write_layer(buffer, host_arrays.place(array, _layer_sharding(leaf.sharding)), index)
  )


@functools.cache
def _zeros(shape: tuple[int, ...], dtype: np.dtype, sharding: jax.sharding.Sharding) -> Callable[[], Array]:
  """A function that allocates zeros, compiled once for all leaves of a shape, dtype and sharding."""
  return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)


@functools.partial(jax.jit, donate_argnums=0)
def _write_layer(buffer, array, index):
  return jax.lax.dynamic_update_index_in_dim(buffer, array.astype(buffer.dtype), index, 0)


def _layer_sharding(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
  """The sharding of one layer of stacked layers."""
  if not isinstance(sharding, NamedSharding):
    return sharding
  return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))


def _get(leaves: Mapping[str, Array], path: str) -> np.ndarray:
  path, index = split_layer_index(path)
  return host_arrays.fetch(leaves[path] if index is None else leaves[path][index])


def _current_name(name: str) -> str:
  for old, new in OLD_NAMES:
    name = name.replace(old, new)
  return name
