"""Prints the commands that train a config or a study, or serve a run, by a scheduler; --run runs them.

  tfm launch slurm --config=configs/lm.py --workdir=runs/lm --nodes=4 --time=24:00:00
  tfm launch tpu --name=my-pod --zone=us-central2-b --config=configs/lm.py --workdir=gs://my-bucket/runs/lm
  tfm launch tpu --name=my-pod --zone=us-central2-b --accelerator-type=v5litepod-64 \\
    --runtime-version=v2-alpha-tpuv5-lite --spot --setup='pip install …' --config=… \\
    --workdir=gs://my-bucket/runs/lm    # creates the slice, and creates it again after every preemption
  tfm launch gke --cluster=mine --tpu-type=v5litepod-256 --docker-image=IMAGE --config=… \\
    --workdir=gs://my-bucket/runs/lm
  tfm launch slurm --study=experiments/position.py --slices=4 --workdir=runs/position    # or gke
  tfm launch kubernetes --serve --workdir=/models/lm --volume-claim=models --docker-image=IMAGE --cpu=4 \\
    --memory=8Gi --max-replicas=4 --rows=16    # flags of tfm serve go to it

Flags that are not listed below go to the scheduler unchanged (sbatch's --partition=…, --gres=…), and
--config.path=value goes to tfm train. When a process ends early, the same command runs again and resumes.
A study is divided into tasks, which share its arms out as `tfm ablate --slice=I/N` does.
"""

import math
import re
import shutil
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from tfm.analysis import topology_names
from tfm.commands import cli
from tfm.config.load import load_config
from tfm.errors import require, suggest
from tfm.launch import gke, kubernetes, slurm, tpu
from tfm.launch.job import BUCKET, Job, name_from_workdir, run_steps
from tfm.studies.study import prefix_errors


OVERRIDES = '--'  # config fields, and options of the scheduler
SCHEDULERS = {'tpu': tpu, 'gke': gke, 'slurm': slurm, 'kubernetes': kubernetes}


def arguments(parser):
  parser.add_argument('scheduler', choices=SCHEDULERS, help='where to train, or to serve: kubernetes')
  what = parser.add_mutually_exclusive_group(required=True)
  what.add_argument(
    '--config', metavar='FILE[:args]', help='as for tfm train; the path on the target machines'
  )
  what.add_argument('--serve', action='store_true', help='serve the run of --workdir, by kubernetes')
  what.add_argument('--study', metavar='FILE[:args]', help='as for tfm ablate, instead of --config')
  parser.add_argument(
    '--slices', type=int, metavar='N', help='of a study: number of tasks, each with a share of the arms'
  )
  parser.add_argument(
    '--workdir', required=True, metavar='DIR', help='a folder that all machines see, or gs://BUCKET/…'
  )
  parser.add_argument(
    '--name', metavar='NAME', help='name of the job, TPU or workload (default: from the workdir)'
  )
  parser.add_argument(
    '--directory', default='', metavar='DIR', help='working directory on the target machines'
  )
  parser.add_argument(
    '--setup', default='', metavar='COMMAND', help='shell command to run first, such as an installation'
  )
  parser.add_argument(
    '--env',
    action='append',
    default=[],
    metavar='NAME=VALUE',
    help='environment variable to set; may be repeated',
  )
  parser.add_argument('--run', action='store_true', help='run the printed commands')


def validate(args):
  words = args.overrides
  args.config_words = [word for word in words if word.startswith('--config.')]
  args.options = dict(parse_option(word) for word in words if not word.startswith('--config.'))
  require(
    bool(args.study) or args.slices is None,
    f'--slices={args.slices} divides the arms of a study; leave it out with --config, or use --study',
  )
  require(
    args.serve == (args.scheduler == 'kubernetes'),
    f'tfm launch {args.scheduler} trains, and --serve is for kubernetes; use --config or --study'
    if args.serve
    else 'tfm launch kubernetes serves a run; use --serve, or train by gke, slurm or tpu',
  )
  require(
    not args.study or (args.slices or 0) >= 1,
    f'--slices={args.slices or ""} must say into how many tasks --study is divided; use --slices=1 or more',
  )
  nodes = args.options.get('nodes', '1')  # without a value: said where it is missing
  require(
    not nodes or re.fullmatch(r'[1-9][0-9]*(-[1-9][0-9]*)?', nodes) is not None,
    f'--nodes={nodes} must be a number of nodes from 1 on, or a range of them, such as 4 or 2-4',
  )
  for word in args.env:
    require('=' in word, f'--env={word} must be NAME=VALUE')
  if args.scheduler != 'slurm':  # sbatch has too many flags to list
    known = SCHEDULERS[args.scheduler].OPTIONS
    for name in args.options:
      require(name in known, f'--{name} is not a flag of tfm launch {args.scheduler}; {suggest(name, known)}')
  if args.study:
    cli.load_study(args.study, args.config_words)
  elif args.config:
    cli.validate_overrides(load_config(args.config), args.config_words)


def main(args):
  from tfm.config.validate import validate_workdir

  if not BUCKET.fullmatch(args.workdir):
    validate_workdir(args.workdir)
  if args.study:
    validate_study(args.study, args.config_words, args.slices)
  elif args.config:
    config = cli.resolve_with_overrides(load_config(args.config), args.config_words)
    validate_config(config, args.options, args.env)
  scheduler = SCHEDULERS[args.scheduler]
  job = Job(
    args.name or name_from_workdir(args.workdir),
    [
      *([args.study] if args.study else []),
      *([f'--config={args.config}'] if args.config else []),
      *(f'--variants={folder}' for folder in args.variants),
      *args.config_words,
    ],
    args.workdir,
    dict(word.split('=', 1) for word in args.env),
    args.directory,
    args.options,
    args.setup,
    args.slices or 0,
  )
  steps = scheduler.steps(job)
  for step in steps + (tpu.monitoring_steps(job) if scheduler is tpu else []):
    print(step, end='\n\n')
  if args.run:
    run_steps(steps, shutil.which)


def parse_option(word: str) -> tuple[str, str]:
  """`--name=value` as a pair; the value of a bare `--name` is ''."""
  name, _, value = word.removeprefix('--').partition('=')
  require(word.startswith('--') and bool(name), f'{word!r} is not a flag; write --name=value')
  return name, value


def validate_study(file: str, config_words: Sequence[str], slices: int) -> None:
  """Raises what `tfm ablate` would raise before it reads data."""
  from tfm.config.validate import validate_parts
  from tfm.studies.arms import apply_changes

  study = cli.load_study(file, config_words)
  require(
    slices <= len(study.arms), f'--slices={slices} exceeds the {len(study.arms)} arms of {file}; use fewer'
  )
  for name, changes in study.arms.items():
    with prefix_errors(name):
      validate_parts(apply_changes(study.config, changes, study.seeds))


def validate_config(config: ConfigDict, options: Mapping[str, str], env: Sequence[str]) -> None:
  """Raises, before machines are requested, what training on them would raise before it reads data."""
  from tfm.config import mesh_constraints
  from tfm.config.assemble import Experiment
  from tfm.config.validate import validate_parts, validate_run

  count = count_devices(options, env)
  slices = options.get('num-slices', '')
  if slices.isdigit() and config.slices.count == -1:
    config.slices.count = int(slices)  # as the devices will report
  if count is None and -1 not in config.mesh.values():
    count = math.prod(config.mesh.values())
  experiment = Experiment(config)
  validate_run(experiment, count)
  validate_parts(experiment)
  if count is not None:
    mesh_constraints.validate_parameters(experiment, count)


def count_devices(options: Mapping[str, str], env: Sequence[str]) -> int | None:
  """The number of devices that the scheduler's options request; None if they do not determine it."""
  tpu_type = options.get('tpu-type') or options.get('accelerator-type') or ''
  if accelerator := topology_names.parse_accelerator_type(tpu_type):
    slices, (generation, chips) = options.get('num-slices', '1'), accelerator
    return int(slices) * chips * topology_names.DEVICES.get(generation, 1) if slices.isdigit() else None
  # Under Slurm JAX expects one task per device; a process on CPUs may simulate several.
  counts = options.get('nodes', ''), options.get('ntasks-per-node', '1')
  simulates_devices = any('XLA_FLAGS=' in word or 'CPU_DEVICES=' in word for word in env)
  if 'ntasks' in options or simulates_devices or not all(map(str.isdigit, counts)):
    return None
  return math.prod(map(int, counts))
