"""Prints the commands that train a config on a TPU pod, in Kubernetes or by Slurm; with --run, runs them.

  tfm launch slurm --config=configs/lm.py --workdir=runs/lm --nodes=4 --time=24:00:00
  tfm launch tpu --name=my-pod --zone=us-central2-b --config=configs/lm.py --workdir=gs://my-bucket/runs/lm
  tfm launch tpu --name=my-pod --zone=us-central2-b --accelerator-type=v5litepod-64 --runtime-version=v2-alpha-tpuv5-lite --spot \\
    --setup='pip install …' --config=… --workdir=gs://my-bucket/runs/lm    # created, and again whenever it is taken away
  tfm launch gke --cluster=mine --tpu-type=v5litepod-256 --docker-image=IMAGE --config=… --workdir=gs://my-bucket/runs/lm

Words that are not listed below go to the place as they are (sbatch's --partition=…, --gres=…), and --config.path=value to
tfm train. Whatever ends a process, the same command is run again and resumes.
"""

import math
import shutil
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from tfm.analysis import topology
from tfm.commands import cli
from tfm.config import validate
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.errors import require, suggest
from tfm.launch import jobs


OVERRIDES = True


def arguments(parser):
  parser.add_argument('place', choices=jobs.PLACES, help='where')
  parser.add_argument(
    '--config', required=True, metavar='FILE[:args]', help='as for tfm train, at its path on those machines'
  )
  parser.add_argument(
    '--workdir', required=True, metavar='DIR', help='a folder that all of them see, or gs://BUCKET/…'
  )
  parser.add_argument(
    '--name', metavar='NAME', help='of the job, the TPU or the workload; else of the workdir'
  )
  parser.add_argument('--folder', default='', metavar='DIR', help='to run in, there')
  parser.add_argument(
    '--setup',
    default='',
    metavar='COMMAND',
    help='of the shell, to run there first, such as what installs tfm',
  )
  parser.add_argument(
    '--env', action='append', default=[], metavar='NAME=VALUE', help='to set there; may be told again'
  )
  parser.add_argument('--run', action='store_true', help='run what is printed')


def main(args):
  config_words = [word for word in args.overrides if word.startswith('--config.')]
  options = dict(option(word) for word in args.overrides if not word.startswith('--config.'))
  if not jobs.BUCKET.fullmatch(args.workdir):
    validate.folder(args.workdir)
  refuse(resolve_config(cli.assigned(load_config(args.config), config_words)), options, args.env)
  for word in args.env:
    require('=' in word, f'--env={word} must be NAME=VALUE')
  if args.place != 'slurm':
    for name in options:
      require(
        name in KNOWN[args.place],
        f'--{name} is not a flag of tfm launch {args.place}; {suggest(name, KNOWN[args.place])}',
      )
  job = jobs.Job(
    args.name or jobs.named(args.workdir),
    [f'--config={args.config}', *config_words],
    args.workdir,
    dict(word.split('=', 1) for word in args.env),
    args.folder,
    options,
    args.setup,
  )
  steps = jobs.PLACES[args.place](job)
  for step in steps + (jobs.watching(job) if args.place == 'tpu' else []):
    print(step, end='\n\n')
  if args.run:
    jobs.run(steps, shutil.which)


KNOWN = {
  'tpu': ('zone', 'project', *jobs.CREATED),
  'gke': (
    'cluster',
    'tpu-type',
    'docker-image',
    'num-slices',
    'zone',
    'project',
    'max-restarts',
    'termination-grace-period-seconds',
  ),
}


def option(word: str) -> tuple[str, str]:
  """`--name=value` as a pair; of `--name` the value is ''."""
  name, _, value = word.removeprefix('--').partition('=')
  require(word.startswith('--') and bool(name), f'{word!r} is not a flag; --name=value is one')
  return name, value


def refuse(config: ConfigDict, options: Mapping[str, str], env: Sequence[str]) -> None:
  """Refuses, before machines are asked for, what they would refuse before they read data."""
  count = devices(options, env)
  slices = options.get('num-slices', '')
  if slices.isdigit() and config.slices.number == -1:
    config.slices.number = int(slices)  # which the devices will say
  if count is None and -1 not in config.mesh.values():
    count = math.prod(config.mesh.values())
  validate.run(config, count)
  validate.made(config)
  if count is not None:
    validate.divides(config, count)


def devices(options: Mapping[str, str], env: Sequence[str]) -> int | None:
  """How many the options of a place ask for; None where they do not tell."""
  if found := topology.counted(options.get('tpu-type') or options.get('accelerator-type') or ''):
    slices, (generation, chips) = options.get('num-slices', '1'), found
    return int(slices) * chips * topology.DEVICES.get(generation, 1) if slices.isdigit() else None
  # Of Slurm JAX expects a task for each device, but of CPUs there may be told to be more.
  told = options.get('nodes', ''), options.get('ntasks-per-node', '1')
  if (
    'ntasks' in options
    or any('XLA_FLAGS=' in word or 'CPU_DEVICES=' in word for word in env)
    or not all(map(str.isdigit, told))
  ):
    return None
  return math.prod(map(int, told))
