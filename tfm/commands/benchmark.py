"""Measures speed and memory on this machine, and compares with PyTorch if the extra [oracle] is installed.

  tfm benchmark gpt2              training and decoding of a small GPT-2: tfm and transformers, alternating
  tfm benchmark nanogpt           training of GPT-2s by shape: tfm and nanoGPT's model, eager and compiled
  tfm benchmark encoder_decoder   training of Marian, BART and T5: tfm and transformers, alternating
  tfm benchmark attention         kernels × variants and all mixers, at lengths from 1k to 32k
  tfm benchmark translation       beam search of a run: tfm and transformers' Marian with the same parameters
  tfm benchmark serving           many clients at once: tfm serve, and a plain server around `generate`
  tfm benchmark ensemble          several seeds trained in one step, and one after another
  tfm benchmark remat             steps that store everything, and those without a policy: memory and time
  tfm benchmark start             compilation by depth, and `tfm train` to its first step
  tfm benchmark device            one accelerator: calibration, training, kernels, mixers, decoding, a profile

Each measurement is a separate process; ratios compare measurements of one command.
"""

import argparse

from tfm.benchmark import (
  compare_attention,
  compare_encoder_decoder,
  compare_ensemble,
  compare_gpt2,
  compare_nanogpt,
  compare_remat,
  compare_serving,
  compare_start,
  compare_translation,
  measure_device,
)


SUBJECTS = {
  'gpt2': compare_gpt2,
  'nanogpt': compare_nanogpt,
  'encoder_decoder': compare_encoder_decoder,
  'attention': compare_attention,
  'translation': compare_translation,
  'serving': compare_serving,
  'ensemble': compare_ensemble,
  'remat': compare_remat,
  'start': compare_start,
  'device': measure_device,
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


def main(args: argparse.Namespace) -> int | None:
  return SUBJECTS[args.subject].main(args)
