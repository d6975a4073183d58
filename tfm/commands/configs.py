"""Lists the configs and studies that come with tfm; prints one of them, to be copied and changed.

  tfm configs
  tfm configs lm > mine.py
  tfm train --config=./mine.py --workdir=runs/mine

Names and paths mean the same: --config=lm is --config=configs/lm.py of the repository.
"""

import argparse

from tfm.config import library
from tfm.errors import suggest


USES_JAX = False
HEADINGS = {
  library.CONFIGS: 'configs: tfm train --config=NAME --workdir=DIR; NAME:smoke is a run of seconds',
  library.EXPERIMENTS: 'studies: tfm ablate NAME --workdir=DIR',
}


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('name', nargs='?', metavar='NAME', help='print this file (default: list all)')


def main(args: argparse.Namespace) -> None:
  files = {folder: library.list_files(folder) for folder in HEADINGS}
  if args.name:
    named = {name: file for of_folder in files.values() for name, file in of_folder.items()}
    if args.name not in named:
      raise ValueError(f'{args.name!r} is neither a config nor a study; {suggest(args.name, named)}')
    print(named[args.name].read_text(encoding='utf-8'), end='')
    return
  width = max(len(name) for of_folder in files.values() for name in of_folder)
  for folder, heading in HEADINGS.items():
    print(f'{heading}\n')
    for name, file in files[folder].items():
      print(f'  {name:{width}} {library.summary(file)}')
    print()
