"""Exports a run as a published checkpoint: config.json and model.safetensors.

  tfm export --workdir=runs/gpt2 --to=models/mine
  tfm export --workdir=runs/lm --family=gpt2 --to=models/mine

An imported run is exported as its family; set --family for other runs. The export fails with the first config
field that the family does not support. The tokenizer of an imported run is copied.

--config.mesh.fsdp=-1 divides the parameters among all devices, also among those of several processes, which
export together, as in `tfm train`; one tensor at a time is gathered and written.
"""

from tfm.commands.cli import add_process_flags, assign_overrides


OVERRIDES = '--config.'  # --config.mesh.fsdp=N


def arguments(parser):
  add = parser.add_argument
  add('--workdir', required=True, metavar='DIR', help='directory of a run')
  add('--to', required=True, metavar='FOLDER', help='output folder')
  add('--step', default='last', metavar='N|best|last', help='which checkpoint (default: last)')
  add(
    '--family',
    metavar='NAME',
    help='model_type of the family, such as llama (default: the family of the import)',
  )
  add_process_flags(parser)


def main(args):
  from tfm.hf import convert
  from tfm.runs import load
  from tfm.training.progress_line import print_status

  run = load.load(args.workdir, args.step, override=lambda config: assign_overrides(config, args.overrides))
  message = convert.export_to_hf(run, args.workdir, args.to, args.family)
  print_status(f'{args.to}: {message}')
