"""Trains a config. Run again with the same --workdir, it resumes.

  tfm train --config=configs/lm.py --workdir=runs/lm
  tfm train --config=configs/lm.py --workdir=runs/plays --config.data.source='text("plays/*.txt")'

DIR gets config.json (resolved), metrics.jsonl (one object a line: step, split and values by name),
TensorBoard events, checkpoints/ and curves.png. SIGTERM and Ctrl-C save and stop.

Several processes, each with its own devices, train as one; DIR is a folder that all of them see:

  srun tfm train --processes=auto --config=… --workdir=…      # also on every host of a TPU pod, or in Kubernetes
  tfm train --processes=2 --process=0 --coordinator=localhost:9999 …    # and, beside it, the same with --process=1

The exit status is 0 when it is done or was asked to stop, 2 when it was refused, and 75 when another process was lost
and the same command may be run again.
"""

from tfm.parallel import processes
from tfm.runs import train
from tfm.training.progress import console


def arguments(parser):
  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE[:args]',
    help='a Python file with get_config(arg); the argument `smoke` shrinks any config',
  )
  parser.add_argument('--workdir', required=True, metavar='DIR', help='where the run lives')
  parser.add_argument(
    '--processes', default='1', metavar='N', help="how many train as one; 'auto': as the environment says"
  )
  parser.add_argument('--process', type=int, metavar='I', help='the number of this one, from 0')
  parser.add_argument('--coordinator', metavar='HOST:PORT', help='where process 0 is reached')
  parser.add_argument(
    '--heartbeat',
    type=int,
    metavar='SECONDS',
    help=f'without a sign of life, after which a process is given up and all end (default: {processes.HEARTBEAT})',
  )
  parser.add_argument(
    '--gathering',
    type=int,
    metavar='SECONDS',
    help=f'to wait for all processes at the start (default: {processes.GATHERING})',
  )


def main(args):
  processes.join(args.processes, args.process, args.coordinator, args.heartbeat, args.gathering)
  with processes.together('train', (ValueError, OSError)):
    console.quiet = not processes.first()
    train.train(args.config, args.workdir)
