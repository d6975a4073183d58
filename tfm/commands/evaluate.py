"""Evaluates a run on a whole split; JSON on stdout.

  tfm evaluate --workdir=runs/lm --step=best --split=test

`loss` is in nats per token, `perplexity` per token, `bits_per_byte` the whole loss in bits over the
bytes of the text, `accuracy` the share of tokens that were the likeliest, `tokens` how many counted.
"""

import json

from tfm import run


def arguments(parser):
  parser.add_argument('--workdir', required=True, metavar='DIR', help='of a run that tfm train made')
  parser.add_argument('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  parser.add_argument('--split', default='validation', metavar='NAME',
                      help='train, validation or test (default: validation)')


def main(args):
  loaded = run.load(args.workdir, args.step)
  values = run.evaluate(loaded, args.split)
  print(json.dumps(dict(step=loaded.step, split=args.split, **values), indent=2))
