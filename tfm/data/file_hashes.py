"""Sizes and SHA-256 digests of the files of a folder (a checkpoint, prepared data), so that a flipped bit is
detected before it is trained on."""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence

from tfm.errors import parsing, read_json_object, require


FILE = 'digests.json'
PROCESS_FILES = 'digests.process_{}.json'  # of what each process has written, until FILE replaces them
# Orbax writes these files when the checkpoint is complete, after the digests.
WRITTEN_LATER = '_CHECKPOINT_METADATA', 'commit_success.txt'
THREADS = 8  # hashlib releases the GIL


def write_digests(folder: pathlib.Path, parts: Mapping[str, int] = {}) -> None:
  """Writes `digests.json`: name → [bytes, SHA-256] of every file of a complete folder that is not yet
  renamed.

  Args:
    parts: subfolders in which as many processes have called `write_process_digests`; what those list is not
      read again.

  Raises:
    OSError: if a list does not come into sight.
  """
  known = {}
  for part, count in parts.items():
    for path in [folder / part / PROCESS_FILES.format(i) for i in range(count)]:
      wait_until_visible(path)
      known |= {f'{part}/{name}': digest for name, digest in json.loads(path.read_text('utf-8')).items()}
      path.unlink()
  names = sorted(_file_names(folder) - known.keys())
  digests = known | dict(zip(names, _digests(folder, names)))
  (folder / FILE).write_text(json.dumps(dict(sorted(digests.items())), indent=0), encoding='utf-8')


def write_process_digests(folder: pathlib.Path, process: int, own: str) -> None:
  """Writes a list of the files below `folder`/`own`, which a process has written, for `write_digests`."""
  names = [f'{own}/{name}' for name in sorted(_file_names(folder / own))]
  text = json.dumps(dict(zip(names, _digests(folder, names))), indent=0)
  (folder / PROCESS_FILES.format(process)).write_text(text, encoding='utf-8')


def wait_until_visible(path: pathlib.Path, seconds: float = 10.0) -> None:
  """Waits for a file that another machine has written: a network file system may remember for some seconds
  that it was not there.

  Raises:
    FileNotFoundError: if it does not come into sight.
  """
  end = time.monotonic() + seconds
  while not path.is_file():
    if time.monotonic() > end:
      raise FileNotFoundError(
        f'{path} was not visible for {seconds:g} s after another process had written it'
      )
    time.sleep(0.1)
    with contextlib.suppress(OSError):
      os.listdir(path.parent)  # makes NFS look again


def read_digests(folder: pathlib.Path) -> dict[str, list] | None:
  """Reads what `write_digests` wrote; None without the file, as in checkpoints of earlier versions.

  Raises:
    ValueError: naming the file, if its content is invalid.
  """
  path = folder / FILE
  if not path.is_file():
    return None
  with parsing(path, 'sizes and digests'):
    content = read_json_object(path, 'sizes and digests')
    is_entry = [isinstance(size, int) and isinstance(digest, str) for size, digest in content.values()]
    require(all(is_entry), 'an entry is not a size and a digest')
  return content


def find_unlisted(folder: pathlib.Path, expected: Mapping[str, Sequence], part: str = '.') -> str:
  """A message on the first file below `folder`/`part` without a digest, or ''. Hidden files, which network
  file systems make, need none.
  """
  files = [path for path in _files(folder / part) if path.name not in (FILE, *WRITTEN_LATER)]
  names = {str(path.relative_to(folder)) for path in files if not path.name.startswith('.')}
  unlisted = sorted(names - expected.keys())
  return f'{folder / FILE} does not list {unlisted[0]}' if unlisted else ''


def find_damage(folder: pathlib.Path, expected: Mapping[str, Sequence]) -> str:
  """A message on the first file that differs from its expected size and digest, or ''."""
  present = [name for name in expected if (folder / name).is_file()]
  if missing := sorted(set(expected) - set(present)):
    return f'{folder / missing[0]} is missing'
  sizes = {name: (folder / name).stat().st_size for name in present}
  for name, size in sizes.items():
    if size != expected[name][0]:
      return f'{folder / name} has {size:,} bytes and had {expected[name][0]:,}'
  for name, (_, digest) in zip(present, _digests(folder, present)):
    if digest != expected[name][1]:
      return f'{folder / name} has the SHA-256 {digest[:16]}… and had {expected[name][1][:16]}…'
  return ''


def _files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  return (path for path in folder.rglob('*') if path.is_file())


def _file_names(folder: pathlib.Path) -> set[str]:
  return {str(path.relative_to(folder)) for path in _files(folder)} - {FILE, *WRITTEN_LATER}


def _digests(folder: pathlib.Path, names: Sequence[str]) -> list[tuple[int, str]]:
  def one(name):
    with (folder / name).open('rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
    return (folder / name).stat().st_size, digest

  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    return list(pool.map(one, names))
