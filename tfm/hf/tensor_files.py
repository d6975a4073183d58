"""Writes tensors in the safetensors format, one at a time, so that no more than one is in memory.

A file is the length of its header (8 bytes, little endian), the header (JSON: name → dtype, shape and place,
padded with spaces) and the numbers; https://huggingface.co/docs/safetensors#format. The library's own writer
takes the tensors of a whole file at once.
"""

import json
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from tfm.errors import writing
from tfm.training.atomic_files import write_atomically


SINGLE_FILE, INDEX = 'model.safetensors', 'model.safetensors.index.json'
MAX_FILE_BYTES = 5 * 2**30
ENTRY_BYTES = 200  # of a tensor in the header, at most, without its name
FREE_SPACE = 'free some space and run the command again'
DTYPES = {
  'float32': 'F32',
  'float16': 'F16',
  'bfloat16': 'BF16',
  'float8_e4m3fn': 'F8_E4M3',
  'int64': 'I64',
  'int32': 'I32',
  'int8': 'I8',
}


class TensorFile:
  """A file that is written tensor by tensor."""

  def __init__(self, path: pathlib.Path, header_bytes: int):
    self.path, self.size, self.header_bytes = path, 0, header_bytes
    self.entries = {'__metadata__': {'format': 'pt'}}
    self.file = path.open('wb')
    self.file.write(bytes(8 + header_bytes))

  def write(self, name: str, array: np.ndarray) -> None:
    """Appends a tensor."""
    end = self.size + array.nbytes
    self.entries[name] = dict(
      dtype=DTYPES[array.dtype.name], shape=array.shape, data_offsets=(self.size, end)
    )
    with writing(self.path.parent, FREE_SPACE):
      self.file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    self.size = end

  def close(self) -> None:
    """Writes the header."""
    header = json.dumps(self.entries, separators=(',', ':')).encode().ljust(self.header_bytes)
    with writing(self.path.parent, FREE_SPACE):
      self.file.seek(0)
      self.file.write(self.header_bytes.to_bytes(8, 'little') + header)
      self.file.close()


def save_tensors(
  folder: pathlib.Path,
  tensors: Iterable[tuple[str, np.ndarray]],
  names: Sequence[str],
  max_bytes: int = MAX_FILE_BYTES,
  stem: str = 'model',
) -> None:
  """Writes `model.safetensors`, or several files of at most `max_bytes` and their index.

  Args:
    names: of all tensors, for the space that a header may need.
    stem: of the file's name.
  """
  # The numbers begin at a multiple of 8 bytes.
  header_bytes = -(-sum(len(json.dumps(name)) + ENTRY_BYTES for name in ('__metadata__', *names)) // 8) * 8
  files = [TensorFile(folder / 'part-0', header_bytes)]
  for name, array in tensors:
    if files[-1].size and files[-1].size + array.nbytes > max_bytes:
      files[-1].close()
      files.append(TensorFile(folder / f'part-{len(files)}', header_bytes))
    files[-1].write(name, array)
  files[-1].close()
  _name_files(folder, files, stem)


def _name_files(folder: pathlib.Path, files: Sequence[TensorFile], stem: str) -> None:
  if len(files) == 1:
    files[0].path.rename(folder / f'{stem}.safetensors')
    return
  weight_map = {}
  for i, file in enumerate(files, start=1):
    name = f'{stem}-{i:05d}-of-{len(files):05d}.safetensors'
    file.path.rename(folder / name)
    weight_map |= dict.fromkeys(file.entries.keys() - {'__metadata__'}, name)
  index = dict(metadata=dict(total_size=sum(file.size for file in files)), weight_map=weight_map)
  write_atomically(folder / f'{stem}.safetensors.index.json', json.dumps(index, indent=2) + '\n')
