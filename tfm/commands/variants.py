"""Lists the variants of every slot: arguments, kernels, cached decoding, packing, sharding.

Prints Markdown; `tfm variants > docs/reference/variants.md` updates the page.
"""

import argparse

from tfm.analysis import variant_catalogue


def arguments(parser: argparse.ArgumentParser) -> None:
  pass


def main(args: argparse.Namespace) -> None:
  print(variant_catalogue.format_markdown(), end='')
