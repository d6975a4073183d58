"""Lists what every slot holds: arguments, kernels, cached decoding, packing, sharding.

Prints the Markdown of docs/variants.md; `tfm variants > docs/variants.md` renews it.
"""

import argparse

from tfm.analysis import catalogue


def arguments(parser: argparse.ArgumentParser) -> None:
  pass


def main(args: argparse.Namespace) -> None:
  print(catalogue.markdown(), end='')
