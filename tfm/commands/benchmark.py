"""Measures speed and memory on this machine, beside PyTorch where the extra [oracle] is installed.

  tfm benchmark gpt2          training and decoding of a small GPT-2, tfm and transformers in turn
  tfm benchmark attention     kernels × variants and all mixers, over lengths from 1k to 32k
  tfm benchmark translation   beam search by a run, tfm and transformers' Marian with its parameters in turn
  tfm benchmark together      seeds that train in one step, and one after another

Each measurement is a process of its own, and a ratio compares what one run has measured.
"""

import argparse

from tfm.benchmark import compare_attention, compare_gpt2, compare_together, compare_translation


SUBJECTS = {
  'gpt2': compare_gpt2,
  'attention': compare_attention,
  'translation': compare_translation,
  'together': compare_together,
}


def arguments(parser: argparse.ArgumentParser) -> None:
  subjects = parser.add_subparsers(dest='subject', required=True, metavar=f'{{{",".join(SUBJECTS)}}}')
  for name, subject in SUBJECTS.items():
    subject.arguments(
      subjects.add_parser(
        name,
        description=subject.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
      )
    )


def main(args: argparse.Namespace) -> None:
  SUBJECTS[args.subject].main(args)
