"""What every file of a checkpoint was when it was saved, so that a flipped bit is not trained on."""

import concurrent.futures
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence


FILE = 'digests.json'
# Orbax notes in them that and when a checkpoint was complete, which is after the rest is.
OPEN = '_CHECKPOINT_METADATA', 'commit_success.txt'
THREADS = 8  # hashing lets other threads run


def seal(folder: pathlib.Path) -> None:
  """Writes `digests.json`: name → [bytes, SHA-256] of every file of a checkpoint that is whole but not yet in its place."""
  found = {str(path.relative_to(folder)) for path in folder.rglob('*') if path.is_file()}
  names = sorted(found - {FILE, *OPEN})
  (folder / FILE).write_text(json.dumps(dict(zip(names, _digests(folder, names))), indent=0))


def sealed(folder: pathlib.Path) -> dict[str, list]:
  """What `seal` wrote; empty where it did not, as in checkpoints of earlier versions.

  Raises:
    ValueError: naming the file, if that is not what it wrote.
  """
  path = folder / FILE
  if not path.is_file():
    return {}
  try:
    told = json.loads(path.read_text())
    if not all(isinstance(size, int) and isinstance(digest, str) for size, digest in told.values()):
      raise TypeError('it is another list')
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(f'{path} cannot be read ({error})') from error
  return told


def damage(folder: pathlib.Path, wanted: Mapping[str, Sequence]) -> str:
  """What is wrong with some files of a checkpoint, the first of it by name; '' for nothing."""
  present = [name for name in wanted if (folder / name).is_file()]
  if missing := sorted(set(wanted) - set(present)):
    return f'{folder / missing[0]} is missing'
  sizes = {name: (folder / name).stat().st_size for name in present}
  for name, size in sizes.items():
    if size != wanted[name][0]:
      return f'{folder / name} has {size:,} bytes and had {wanted[name][0]:,}'
  for name, (_, digest) in zip(present, _digests(folder, present)):
    if digest != wanted[name][1]:
      return f'{folder / name} has the SHA-256 {digest[:16]}… and had {wanted[name][1][:16]}…'
  return ''


def _digests(folder: pathlib.Path, names: Sequence[str]) -> list[tuple[int, str]]:
  def one(name):
    with (folder / name).open('rb') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
    return (folder / name).stat().st_size, digest

  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    return list(pool.map(one, names))
