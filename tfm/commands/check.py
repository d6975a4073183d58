"""Checks a variant: runs the conformance suite on one file of a slot.

  tfm check lab/positions/mine.py
  tfm check lab/data/sources/mine.py
  tfm check tfm/masks/strided.py      (in a clone)

The folder of the file says which slot it fills. The suite builds small models with the variant, by the specs
that its class lists as `examples`, and proves what the slot promises: what is causal leaks nothing, cached
decoding equals the full pass, packing, padding and meshes of eight simulated devices change nothing, and
gradients are finite. Other commands know the variant by --variants=lab. Exit status: 0 if everything passes,
1 if something fails.
"""

import argparse
import ast
import importlib.resources
import pathlib
import subprocess
import sys
import tempfile

from tfm import variant_folders
from tfm.errors import importing_extra, parsing, require


USES_JAX = False


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('file', metavar='FILE', help='the file of a variant, FOLDER/SLOT/NAME.py')
  parser.add_argument('--quick', action='store_true', help='only what takes little time')


def main(args: argparse.Namespace) -> int:
  with importing_extra('check'):
    import pytest
    import pytest_timeout  # noqa: F401
  file = pathlib.Path(args.file).resolve()
  require(file.is_file() and file.suffix == '.py', f'{args.file} is no Python file; name that of a variant')
  folder = find_folder(file)
  with parsing(file, 'a variant'):
    parts = ast.parse(file.read_bytes(), file.name).body
  require(
    any(isinstance(part, ast.ClassDef) and not part.name.startswith('_') for part in parts),
    f'{args.file} defines no public class; a variant is one, derived from the protocol of its slot '
    '(docs/reference/protocols.md)',
  )
  if folder != variant_folders.PACKAGE:
    variant_folders.add_folder(folder)
  suite = importlib.resources.files('tfm.conformance')
  with tempfile.TemporaryDirectory() as cache:
    status = subprocess.run(
      [
        *(sys.executable, '-m', 'pytest', str(suite), f'--config-file={suite / "check.ini"}'),
        *('-o', f'cache_dir={cache}', f'--variant={file.stem}'),
        *(f'--variants={other}' for other in variant_folders.folders()),
        *('-m', 'not exhaustive and not slow' if args.quick else 'not exhaustive'),
      ]
    ).returncode
  require(status != pytest.ExitCode.NO_TESTS_COLLECTED, f'{args.file}: the suite has no case for its slot')
  return int(status != pytest.ExitCode.OK)


def find_folder(file: pathlib.Path) -> pathlib.Path:
  """The folder with the folder of the slot in which a variant's file is.

  Raises:
    ValueError: if it is in no such folder, or has a name that no variant can have.
  """
  slots = variant_folders.slot_folders()
  for slot in slots:
    depth = len(pathlib.PurePath(slot).parts)
    if file.parent.as_posix().endswith(f'/{slot}'):
      require(
        file.stem != 'protocol' and not file.stem.startswith('_') and file.stem.isidentifier(),
        f'{file.name} is no variant: its name is that of no spec; rename it',
      )
      return file.parents[depth]
  raise ValueError(f'{file} is in no folder of a slot; move it into one of {", ".join(slots)}')
