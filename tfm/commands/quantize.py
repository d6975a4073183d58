"""Stores the projections of a run in integers.

  tfm quantize --workdir=runs/lm --quantization=int8 --to=runs/lm-int8
  tfm quantize --workdir=runs/lm --quantization='int4(group=64)' --to=runs/lm-int4 --split=validation

int8 also rounds activations, one scale for each token, so that products are those of integers;
int8(weights_only=True) and int4 do not. With int8(calibrated=True) all inputs of a projection have one scale,
by the greatest of --calibrate batches. fp8 is as int8, in float8_e4m3fn. A run that was trained with
config.model.quantization needs no --quantization, and evaluates as before. Embeddings, norms, biases, routers
and experts stay as they are; what is not in small numbers is listed, the largest first. generate, evaluate,
serve and the other commands read the new run. --split prints metrics before and after.
"""

from tfm.commands.cli import validate_flag
from tfm.config.names import SPLIT
from tfm.errors import require


def arguments(parser):
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='directory of a run')
  add('--to', required=True, metavar='DIR', help='directory of the new run; must not hold a run')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add(
    '--quantization',
    metavar='SPEC',
    help='int8(weights_only, calibrated), int4(group), fp8(calibrated), bitnet (default: '
    'config.model.quantization of the run)',
  )
  add(
    '--calibrate',
    type=int,
    metavar='N',
    help='of calibrated=True: batches of the training split that the scales of inputs are from (default: 8)',
  )
  add('--split', metavar='SPLIT', help='evaluate both on this split (default: neither)')


def validate(args):
  if args.quantization:
    validate_flag('quantization', 'model.quantization', args.quantization)
  require(args.calibrate is None or args.calibrate > 0, f'--calibrate={args.calibrate} must be at least 1')
  if args.split:
    validate_flag('split', SPLIT, args.split.partition('/')[0])


def main(args):
  from tfm.models.memory import total_bytes
  from tfm.runs import load
  from tfm.runs.quantize import list_unquantized, quantize_run, save_run
  from tfm.training.progress_line import print_status

  run = load.load(args.workdir, args.step)
  quantized = quantize_run(run, args.quantization, args.calibrate)
  save_run(quantized, args.to, args.workdir)
  for name, one in ((args.workdir, run), (args.to, quantized)):
    metrics = load.evaluate(one, args.split).metrics if args.split else {}
    values = ''.join(f', {key} {value:.4g}' for key, value in metrics.items())
    print_status(f'{name}: {total_bytes(one.params):,} bytes of parameters{values}')
  others = ', '.join(f'{name} ({size:,} bytes)' for name, size in list_unquantized(quantized).items())
  print_status(f'not quantized: {others}')
