"""The tensors of a checkpoint folder, one after another, and parameters made of them; and the same backwards."""

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
import safetensors
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

from tfm.errors import suggest
from tfm.hf.families.protocol import Part, Weight
from tfm.shapes import Array, PyTree


WHOLE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
_log = logging.getLogger(__name__)
SHARD = 5 * 2**30  # bytes of a file of several
# How names began before they were what they are.
RENAMED = (
  ('LayerNorm.gamma', 'LayerNorm.weight'),
  ('LayerNorm.beta', 'LayerNorm.bias'),
  # DeBERTa's, which its classes call so, or so.
  ('lm_predictions.lm_head.dense', 'cls.predictions.transform.dense'),
  ('lm_predictions.lm_head.bias', 'cls.predictions.bias'),
  ('lm_predictions.lm_head.LayerNorm', 'cls.predictions.transform.LayerNorm'),
)


class Tensors:
  """The tensors of `model.safetensors`, or of the files that its index names; each is read when it is asked for."""

  def __init__(self, folder: pathlib.Path):
    """Opens a folder.

    Raises:
      ValueError: if it has no such file.
    """
    self.folder, whole, index = folder, folder / WHOLE, folder / INDEX
    if index.exists():
      files = json.loads(index.read_text())['weight_map']
    elif whole.exists():
      with safetensors.safe_open(whole, 'numpy') as file:
        files = dict.fromkeys(file.keys(), WHOLE)
    else:
      raise ValueError(
        f'{folder} has neither {WHOLE} nor {INDEX}; a checkpoint in the safetensors format has one'
      )
    for name in sorted(set(files.values())):
      if not (folder / name).exists():
        raise ValueError(f'{folder} lacks {name}, which {INDEX} names')
    self._files = {_renamed(name): (file, name) for name, file in files.items()}

  @property
  def names(self) -> tuple[str, ...]:
    return tuple(self._files)

  def read(self, name: str) -> np.ndarray:
    """A tensor, in memory of its own."""
    file, stored = self._files[name]
    with safetensors.safe_open(self.folder / file, 'numpy') as opened:
      return opened.get_tensor(stored)

  def same(self, one: str, other: str) -> bool:
    """Whether two tensors are equal."""
    return np.array_equal(self.read(one), self.read(other))

  def merge(self, names: Sequence[str]) -> None:
    """Lets the first of some names stand for all of them that are there.

    Raises:
      ValueError: if they are not the same tensor.
    """
    there = [name for name in names if name in self._files]
    for other in there[1:]:
      if not self.same(there[0], other):
        raise ValueError(
          f'{self.folder} has {there[0]!r} and {other!r}, which differ; one table for both is understood'
        )
      del self._files[other]
    if there:
      self._files[names[0]] = self._files.pop(there[0])

  def expect(self, name: str, values: np.ndarray) -> None:
    """Puts a tensor aside, if it is there, that holds what is known; rounded, of sixteen bits.

    Raises:
      ValueError: if it holds something else.
    """
    if name not in self._files:
      return
    found = self.read(name)
    if found.shape != values.shape or np.abs(found.astype(np.float32) - values).max() > (
      1e-5 if found.dtype == np.float32 else 1e-2
    ):
      raise ValueError(
        f'{self.folder} has the tensor {name!r} with other numbers than the constants that its family has'
      )
    del self._files[name]


def load(
  tensors: Tensors,
  weights: Iterable[Weight],
  target: PyTree,
  prefix: str = '',
  ignored: str = r'$^',
  left_out: str = r'$^',
) -> PyTree:
  """Parameters from tensors, one at a time, each cast and put where `target` says: beside the parameters themselves
  hardly more than one tensor is held.

  Args:
    target: `ShapeDtypeStruct`s with shardings.
    prefix, ignored, left_out: as of `Family`.

  Raises:
    ValueError: for a tensor that is missing, left over or of another shape, and a parameter that no tensor is for.
  """
  weights, there = list(weights), set(tensors.names)
  named = {name for weight in weights for name in weight.tensors}
  stripped = {name: name.removeprefix(prefix) for name in named}
  bare = bool(prefix) and not any(name in there for name in named if name.startswith(prefix))
  stored = {name: stripped[name] if bare else name for name in named}
  if missing := sorted(name for name in named if stored[name] not in there):
    raise ValueError(
      f'{tensors.folder} has no tensor {stored[missing[0]]!r}, one of {len(missing)} that are missing; '
      f'{suggest(stored[missing[0]], sorted(there))}'
    )
  read = set(stored.values())
  known = re.compile(ignored)
  extra = sorted(name for name in there - read if not known.fullmatch(name))
  if unused := [name for name in extra if re.fullmatch(left_out, name)]:
    _log.warning('%s: left out, as the output does not depend on them: %s', tensors.folder, ', '.join(unused))
  if extra := [name for name in extra if name not in unused]:
    raise ValueError(
      f'{tensors.folder} has the tensor {extra[0]!r}, one of {len(extra)} that this model has no place for'
    )

  targets = {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(target)}
  found, filled = {}, dict.fromkeys(targets, 0)
  for weight in weights:
    arrays = [tensors.read(stored[name]) for name in weight.tensors]
    for path, index, array in arranged(weight, arrays):
      if path not in targets:
        raise ValueError(
          f'{weight.tensors[0]!r} is {path}, and the model has no such parameter; {suggest(path, targets)}'
        )
      leaf = targets[path]
      shape = leaf.shape if index is None else leaf.shape[1:]
      if array.shape != shape:
        raise ValueError(
          f'{weight.tensors[0]!r} is of shape {array.shape} as {path}, and the model wants {shape}'
        )
      found[path] = _put(found.get(path), array, index, leaf)
      filled[path] += array.size
  for path, leaf in targets.items():
    if filled[path] != math.prod(leaf.shape):
      raise ValueError(f'no tensor is for {"all of " if filled[path] else ""}the parameter {path}')
  return jax.tree_util.tree_map_with_path(lambda path, _: found[path_of(path)], target)


def unload(weights: Iterable[Weight], params: PyTree) -> Iterator[tuple[str, np.ndarray]]:
  """The tensors of parameters, by name, one after another."""
  leaves = {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
  for weight in weights:
    yield from zip(weight.tensors, disarranged(weight, lambda path: _get(leaves, path)))


def save(folder: pathlib.Path, tensors: Iterable[tuple[str, np.ndarray]], most: int = SHARD) -> None:
  """Writes `model.safetensors`, or several files of at most so many bytes and their index."""
  shards, size = [{}], 0
  files = []
  for name, array in tensors:
    if size and size + array.nbytes > most:
      files.append(_write(folder, f'part-{len(files)}', shards[-1]))
      shards.append({})
      size = 0
      shards[-2] = dict.fromkeys(shards[-2])  # written, and let go
    shards[-1][name] = np.ascontiguousarray(array)
    size += array.nbytes
  if not files:
    _write(folder, WHOLE, shards[-1])
    return
  files.append(_write(folder, f'part-{len(files)}', shards[-1]))
  placed = {}
  for i, (file, names) in enumerate(zip(files, shards), start=1):
    final = f'model-{i:05d}-of-{len(files):05d}.safetensors'
    file.rename(folder / final)
    placed |= dict.fromkeys(names, final)
  total = sum(file.stat().st_size for file in folder.glob('model-*.safetensors'))
  (folder / INDEX).write_text(
    json.dumps(dict(metadata=dict(total_size=total), weight_map=placed), indent=2) + '\n'
  )


def arranged(weight: Weight, arrays: Sequence[np.ndarray]) -> Iterator[tuple[str, int | None, np.ndarray]]:
  """(path, place along the stacked layers or None, values) of each parameter that tensors are."""
  x = arrays[0] if isinstance(weight.names, str) else np.stack(arrays)
  x = x[weight.skip :]
  if weight.pattern:
    x = einops.rearrange(x, weight.pattern, **weight.sizes)
  if weight.scale != 1 or weight.offset:
    x = (weight.scale * x.astype(np.float32) + weight.offset).astype(np.float32)
  for part, entries in zip(weight.parts, _split(weight, x)):
    yield *located(part.path), entries


def disarranged(weight: Weight, get: Callable[[str], np.ndarray]) -> Sequence[np.ndarray]:
  """The tensors that parameters are."""
  x = (
    get(weight.paths)
    if isinstance(weight.paths, str)
    else np.concatenate([_unsplit(part, get(part.path)) for part in weight.parts])
  )
  if weight.scale != 1 or weight.offset:
    x = (x.astype(np.float32) - weight.offset) / weight.scale
  if weight.pattern:
    x = _back(x, weight.pattern, weight.sizes)
  if weight.skip:
    x = np.concatenate([np.zeros((weight.skip, *x.shape[1:]), x.dtype), x])
  return [x] if isinstance(weight.names, str) else list(x)


def _back(x: np.ndarray, pattern: str, sizes: Mapping[str, int]) -> np.ndarray:
  """The rearrangement undone."""
  left, right = pattern.split('->')
  return einops.rearrange(x, f'{right} -> {left}', **sizes)


def _split(weight: Weight, x: np.ndarray) -> Iterator[np.ndarray]:
  if isinstance(weight.paths, str):
    yield x
    return
  start, wanted = 0, sum(part.count for part in weight.parts)
  if wanted != len(x):
    raise ValueError(f'{weight.tensors[0]!r} has {len(x)} entries and its parameters take {wanted}')
  for part in weight.parts:
    entries = x[start : start + part.count]
    yield einops.rearrange(entries, part.pattern, **part.sizes) if part.pattern else entries[0]
    start += part.count


def _unsplit(part: Part, x: np.ndarray) -> np.ndarray:
  return _back(x, part.pattern, part.sizes) if part.pattern else x[None]


def located(path: str) -> tuple[str, int | None]:
  """`a/b[3]/c` → (`a/b/c`, 3)."""
  if not (found := re.search(r'\[(\d+)\]', path)):
    return path, None
  return path.replace(found[0], ''), int(found[1])


def path_of(path) -> str:
  return '/'.join(str(key.key) for key in path)


def _put(buffer: Array | None, array: np.ndarray, index: int | None, leaf: jax.ShapeDtypeStruct) -> Array:
  """Waited for: what has not yet gone to its device would pile up here."""
  if index is None:
    return jax.block_until_ready(jax.device_put(array.astype(leaf.dtype, copy=False), leaf.sharding))
  if buffer is None:
    buffer = _zeros(leaf.shape, leaf.dtype, leaf.sharding)()
  # As it is, out of order and of sixteen bits: the device's copy is the only one.
  return jax.block_until_ready(_written(buffer, jax.device_put(array, _of_one(leaf.sharding)), index))


@functools.cache
def _zeros(shape: tuple[int, ...], dtype: np.dtype, sharding: jax.sharding.Sharding) -> Callable[[], Array]:
  """Makes them, compiled once for all leaves that are alike."""
  return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)


@functools.partial(jax.jit, donate_argnums=0)
def _written(buffer, array, index):
  return jax.lax.dynamic_update_index_in_dim(buffer, array.astype(buffer.dtype), index, 0)


def _of_one(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
  """Where one layer of stacked ones lies."""
  if not isinstance(sharding, NamedSharding):
    return sharding
  return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))


def _get(leaves: Mapping[str, Array], path: str) -> np.ndarray:
  path, index = located(path)
  return np.asarray(leaves[path] if index is None else leaves[path][index])


def _renamed(name: str) -> str:
  for old, new in RENAMED:
    name = name.replace(old, new)
  return name


def _write(folder: pathlib.Path, name: str, tensors: Mapping[str, np.ndarray]) -> pathlib.Path:
  safetensors.numpy.save_file(dict(tensors), folder / name, metadata={'format': 'pt'})
  return folder / name
