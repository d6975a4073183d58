"""Lists the variants of every slot: arguments, kernels, cached decoding, packing, sharding.

Prints Markdown; `tfm variants > docs/reference/variants.md` updates the page.
"""

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
  pass


def main(args: argparse.Namespace) -> None:
  from tfm.analysis import variant_catalogue

  print(variant_catalogue.format_markdown(), end='')
