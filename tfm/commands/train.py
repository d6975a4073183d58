"""Trains a config; the same command run again resumes.

  tfm train --config=configs/lm.py --workdir=runs/lm
  tfm train --config=configs/lm.py --workdir=runs/plays --config.data.source='text("plays/*.txt")'

Writes to DIR: config.json (resolved), metrics.jsonl (one object per line: step, split and values by name),
log.txt, checkpoints/ and curves.png. SIGTERM and Ctrl-C save a checkpoint and stop.

On a terminal a bar shows step, loss, last validation, tokens/s, MFU (of a known chip), the peak of memory and
the time left; elsewhere lines do. --quiet shows only errors, --json one object a line on stdout. Metrics go
to TensorBoard, Weights & Biases, MLflow or Trackio by --config.training.sinks=tensorboard, or several:
"('tensorboard', 'wandb(project=\"plays\")')".

Several processes, each with its own devices, train as one run; DIR must be visible to all of them:

  srun tfm train --processes=auto --config=… --workdir=…   # likewise on TPU pods, or in Kubernetes
  tfm train --processes=2 --process=0 --coordinator=localhost:9999 …    # and the same with --process=1

Exit status: 0 when training finished or stopped on a signal, 1 when the machine failed (such as a full disk),
2 for invalid input or a run that diverged, 75 when another process was lost and the same command should be
run again.
"""

from tfm.commands.cli import add_display_flags, add_process_flags


def arguments(parser):
  parser.add_argument(
    '--config',
    required=True,
    metavar='FILE[:args]',
    help='a Python file with get_config(arg); the argument `smoke` shrinks any config',
  )
  parser.add_argument('--workdir', required=True, metavar='DIR', help='the folder of the run')
  add_display_flags(parser)
  add_process_flags(parser)


def main(args):
  from tfm.runs import train

  train.train(args.config, args.workdir)
