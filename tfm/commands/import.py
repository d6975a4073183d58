"""Imports a published checkpoint as a run, which every command reads.

  tfm import --from=models/gpt2 --workdir=runs/gpt2
  tfm import --from=models/gpt2 --workdir=runs/gpt2 --config.data.source='text("plays/*.txt")'

The folder has config.json, model.safetensors (one file, or several with an index) and a tokenizer; a path
that is no folder is a name on the hub. The run is at step 0; generate, evaluate and attend read it
immediately. Set config fields outside the model, such as the data for evaluation, with
--config.path.to.field=value. --config.mesh.data=1 --config.mesh.fsdp=-1 divides the parameters among all
devices, also among those of several processes, which import together, as in `tfm train`.
"""

from tfm.commands.cli import add_process_flags, assign_overrides, validate_overrides
from tfm.config.schema import default_config


OVERRIDES = '--config.'  # config fields of the run


def arguments(parser):
  add = parser.add_argument
  add(
    '--from',
    required=True,
    dest='folder',
    metavar='FOLDER',
    help='a published checkpoint, or its name on the hub',
  )
  add('--workdir', required=True, metavar='DIR', help='directory of the new run; must not hold a run')
  add_process_flags(parser)


def validate(args):
  # The fields of the model are those of the checkpoint.
  words = [word for word in args.overrides if not word.startswith('--config.model.')]
  validate_overrides(default_config(), words)


def main(args):
  from tfm.hf import convert
  from tfm.training.progress_line import print_status

  run = convert.convert_from_hf(
    args.folder, args.workdir, lambda config: assign_overrides(config, args.overrides)
  )
  print_status(
    f'{args.workdir}: {run.family.model_type}, {run.vocab:,} tokens; ready for '
    f'{"tfm evaluate" if run.config.model.patch else "tfm generate, evaluate and attend"}'
  )
