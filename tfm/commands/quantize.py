"""Stores the projections of a run in integers.

  tfm quantize --workdir=runs/lm --quantization=int8 --to=runs/lm-int8
  tfm quantize --workdir=runs/lm --quantization='int4(group=64)' --to=runs/lm-int4 --split=validation

int8 also rounds activations, one scale for each token, so that products are those of integers;
int8(weights_only=True) and int4 do not. A run that was trained with config.model.quantization needs no
--quantization, and evaluates as before. Embeddings, norms, biases, routers and experts stay as they are.
generate, evaluate, serve and the other commands read the new run. --split prints metrics before and after.
What remains in floating-point numbers is listed, the largest first.
"""

from tfm.commands.cli import validate_flag
from tfm.config.names import SPLIT


def arguments(parser):
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='directory of a run')
  add('--to', required=True, metavar='DIR', help='directory of the new run; must not hold a run')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add(
    '--quantization',
    metavar='SPEC',
    help='int8(weights_only), int4(group) (default: config.model.quantization of the run)',
  )
  add('--split', metavar='SPLIT', help='evaluate both on this split (default: neither)')


def validate(args):
  if args.quantization:
    validate_flag('quantization', 'model.quantization', args.quantization)
  if args.split:
    validate_flag('split', SPLIT, args.split.partition('/')[0])


def main(args):
  from tfm.models.memory import total_bytes
  from tfm.runs import load
  from tfm.runs.quantize import list_floating, quantize_run, save_run
  from tfm.training.progress_line import print_status

  run = load.load(args.workdir, args.step)
  quantized = quantize_run(run, args.quantization)
  save_run(quantized, args.to, args.workdir)
  for name, one in ((args.workdir, run), (args.to, quantized)):
    metrics = load.evaluate(one, args.split).metrics if args.split else {}
    values = ''.join(f', {key} {value:.4g}' for key, value in metrics.items())
    print_status(f'{name}: {total_bytes(one.params):,} bytes of parameters{values}')
  floating = ', '.join(f'{name} ({size:,} bytes)' for name, size in list_floating(quantized).items())
  print_status(f'not in integers: {floating}')
