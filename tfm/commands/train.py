"""Trains a config; the same command run again resumes.

  tfm train --config=configs/lm.py --workdir=runs/lm
  tfm train --config=configs/lm.py --workdir=runs/plays --config.data.source='text("plays/*.txt")'

Writes to DIR: config.json (resolved), metrics.jsonl (one object per line: step, split and values by name),
TensorBoard events, checkpoints/ and curves.png. SIGTERM and Ctrl-C save a checkpoint and stop.

Several processes, each with its own devices, train as one run; DIR must be visible to all of them:

  srun tfm train --processes=auto --config=… --workdir=…   # likewise on TPU pods, or in Kubernetes
  tfm train --processes=2 --process=0 --coordinator=localhost:9999 …    # and the same with --process=1

Exit status: 0 when training finished or stopped on a signal, 2 for invalid input, 75 when another process was
lost and the same command should be run again.
"""

from tfm.parallel import processes
from tfm.runs import train
from tfm.training.progress_line import console


def arguments(parser):
  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE[:args]',
    help='a Python file with get_config(arg); the argument `smoke` shrinks any config',
  )
  parser.add_argument('--workdir', required=True, metavar='DIR', help='the folder of the run')
  parser.add_argument(
    '--processes',
    default='1',
    metavar='N',
    help="number of processes; 'auto': from the environment (Slurm, TPU pod, Kubernetes)",
  )
  parser.add_argument('--process', type=int, metavar='I', help='index of this process, from 0')
  parser.add_argument('--coordinator', metavar='HOST:PORT', help='address of process 0')
  parser.add_argument(
    '--heartbeat_timeout',
    type=int,
    metavar='SECONDS',
    help='timeout after which a silent process counts as lost and all others exit '
    f'(default: {processes.HEARTBEAT_TIMEOUT})',
  )
  parser.add_argument(
    '--connect_timeout',
    type=int,
    metavar='SECONDS',
    help=f'timeout for all processes to connect at the start (default: {processes.CONNECT_TIMEOUT})',
  )


def main(args):
  processes.connect(
    args.processes, args.process, args.coordinator, args.heartbeat_timeout, args.connect_timeout
  )
  with processes.abort_all_on_error('train', (ValueError, OSError)):
    console.quiet = not processes.is_main_process()
    train.train(args.config, args.workdir)
