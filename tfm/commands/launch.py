"""Prints the commands that train a config on a TPU pod, in Kubernetes or by Slurm; with --run, runs them.

  tfm launch slurm --config=configs/lm.py --workdir=runs/lm --nodes=4 --time=24:00:00
  tfm launch tpu --name=my-pod --zone=us-central2-b --config=configs/lm.py --workdir=gs://my-bucket/runs/lm
  tfm launch gke --cluster=mine --tpu-type=v5litepod-256 --docker-image=IMAGE --config=… --workdir=gs://my-bucket/runs/lm

Words that are not listed below go to the place as they are (sbatch's --partition=…, --gres=…), and --config.path=value to
tfm train. Whatever ends a process, the same command is run again and resumes.
"""

import shutil

from tfm import config as configs
from tfm import launch
from tfm.commands import cli
from tfm.spec import suggest

OVERRIDES = True


def arguments(parser):
  parser.add_argument('place', choices=launch.PLACES, help='where')
  parser.add_argument('--config', required=True, metavar='FILE[:args]', help='as for tfm train, at its path on those machines')
  parser.add_argument('--workdir', required=True, metavar='DIR', help='a folder that all of them see, or gs://BUCKET/…')
  parser.add_argument('--name', metavar='NAME', help='of the job, the TPU or the workload; else of the workdir')
  parser.add_argument('--folder', default='', metavar='DIR', help='to run in, there')
  parser.add_argument('--env', action='append', default=[], metavar='NAME=VALUE', help='to set there; may be told again')
  parser.add_argument('--run', action='store_true', help='run what is printed')


def main(args):
  config_words = [word for word in args.overrides if word.startswith('--config.')]
  options = dict(option(word) for word in args.overrides if not word.startswith('--config.'))
  # What the machines would refuse is refused before they are asked for.
  configs.resolve(cli.assigned(configs.load(args.config), config_words))
  for word in args.env:
    configs.require('=' in word, f'--env={word} must be NAME=VALUE')
  if args.place != 'slurm':
    for name in options:
      configs.require(name in KNOWN[args.place], f'--{name} is not a flag of tfm launch {args.place}; {suggest(name, KNOWN[args.place])}')
  job = launch.Job(args.name or launch.named(args.workdir), [f'--config={args.config}', *config_words], args.workdir,
                   dict(word.split('=', 1) for word in args.env), args.folder, options)
  steps = launch.PLACES[args.place](job)
  for step in steps + (launch.watching(job) if args.place == 'tpu' else []):
    print(step, end='\n\n')
  if args.run:
    launch.run(steps, shutil.which)


KNOWN = {
  'tpu': ('zone', 'project'),
  'gke': ('cluster', 'tpu-type', 'docker-image', 'num-slices', 'zone', 'project', 'max-restarts', 'termination-grace-period-seconds'),
}


def option(word: str) -> tuple[str, str]:
  """`--name=value` as a pair."""
  name, equals, value = word.removeprefix('--').partition('=')
  configs.require(word.startswith('--') and bool(equals), f'{word!r} is not a flag; --name=value is one')
  return name, value
