"""Writes a run as a published checkpoint: config.json and model.safetensors.

  tfm export --workdir=runs/gpt2 --to=models/mine
  tfm export --workdir=runs/lm --family=gpt2 --to=models/mine

A run that was imported is of its family still; of another --family says how it is to be written. What the
family's config.json cannot say is refused by name. A tokenizer that came along goes along.
"""

from tfm.hf import convert, from_config
from tfm.runs import load
from tfm.training.progress import say


def arguments(parser):
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='of a run')
  add('--to', required=True, metavar='FOLDER', help='that is made')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add(
    '--family',
    metavar='NAME',
    help=f'one of {", ".join(from_config.load_families())} (default: that it was imported of)',
  )


def main(args):
  told = convert.export_to_hf(load.load(args.workdir, args.step), args.workdir, args.to, args.family)
  say(f'{args.to}: {told}')
