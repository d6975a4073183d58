"""Trains a config. Run again with the same --workdir, it resumes.

  tfm train --config=configs/lm.py --workdir=runs/lm
  tfm train --config=configs/lm.py --workdir=runs/plays --config.data.source='text("plays/*.txt")'

DIR gets config.json (resolved), metrics.jsonl (one object a line: step, split and values by name),
TensorBoard events, checkpoints/ and curves.png. SIGTERM and Ctrl-C save and stop.
"""

from tfm import train


def arguments(parser):
  parser.add_argument('--config', required=True, metavar='FILE[:args]',
                      help='a Python file with get_config(arg); the argument `smoke` shrinks any config')
  parser.add_argument('--workdir', required=True, metavar='DIR', help='where the run lives')


def main(args):
  train.train(args.config, args.workdir)
