"""Sizes and SHA-256 digests of the files of a folder (a checkpoint, prepared data), so that a flipped bit is
detected before it is trained on."""

import concurrent.futures
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence


FILE = 'digests.json'
# Orbax writes these files when the checkpoint is complete, after the digests.
WRITTEN_LATER = '_CHECKPOINT_METADATA', 'commit_success.txt'
THREADS = 8  # hashlib releases the GIL


def write_digests(folder: pathlib.Path) -> None:
  """Writes `digests.json`: name → [bytes, SHA-256] of every file of a complete folder that is not yet
  renamed."""
  names = sorted(_file_names(folder))
  (folder / FILE).write_text(
    json.dumps(dict(zip(names, _digests(folder, names))), indent=0), encoding='utf-8'
  )


def read_digests(folder: pathlib.Path) -> dict[str, list] | None:
  """Reads what `write_digests` wrote; None without the file, as in checkpoints of earlier versions.

  Raises:
    ValueError: naming the file, if its content is invalid.
  """
  path = folder / FILE
  if not path.is_file():
    return None
  try:
    content = json.loads(path.read_text(encoding='utf-8'))
    if not all(isinstance(size, int) and isinstance(digest, str) for size, digest in content.values()):
      raise TypeError('not a list of sizes and digests')
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(f'{path} cannot be read ({error})') from error
  return content


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


def _file_names(folder: pathlib.Path) -> set[str]:
  names = {str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()}
  return names - {FILE, *WRITTEN_LATER}


def _digests(folder: pathlib.Path, names: Sequence[str]) -> list[tuple[int, str]]:
  def one(name):
    with (folder / name).open('rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
    return (folder / name).stat().st_size, digest

  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    return list(pool.map(one, names))
