"""Shows the runs and studies of a folder in a browser: curves, comparisons, attention, reports.

  tfm board
  tfm board runs/position --port=0

It prints the address of a page on this machine, which no other machine can open, and ends with Ctrl-C. For a
folder on another machine forward the port: `ssh -L 8080:127.0.0.1:8080 MACHINE tfm board DIR`. The page of a
run that is training follows it. Attention is computed on the CPU, so that it does not disturb a training.
"""

import argparse
import pathlib


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    'folder', nargs='?', default='runs', metavar='DIR', help='a folder of runs or studies (default: runs)'
  )
  parser.add_argument(
    '--port', type=int, default=8080, metavar='N', help='where it listens; 0 for a free port (default: 8080)'
  )


def main(args: argparse.Namespace) -> None:
  import jax

  from tfm.board.server import serve

  jax.config.update('jax_platforms', 'cpu')
  serve(
    pathlib.Path(args.folder), args.port, lambda address: print(f'{address} (Ctrl-C ends it)', flush=True)
  )
