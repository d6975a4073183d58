"""Makes a run of a published checkpoint, for every command to read.

  tfm import --from=models/gpt2 --workdir=runs/gpt2
  tfm import --from=models/gpt2 --workdir=runs/gpt2 --config.data.source='text("plays/*.txt")'

The folder holds config.json, model.safetensors (whole or in parts) and a tokenizer; what is no folder is a name on the hub. The
run has no steps behind it: generate, evaluate and attend read it at once. Fields of the config besides those of
the model, such as the data that it is evaluated on, are set by --config.path.to.field=value.
"""

from tfm.commands.cli import assign_overrides
from tfm.hf import convert
from tfm.training.progress import say


OVERRIDES = True  # words --config.path=value are read


def arguments(parser):
  add = parser.add_argument
  add(
    '--from',
    required=True,
    dest='folder',
    metavar='FOLDER',
    help='a published checkpoint, or its name on the hub',
  )
  add('--workdir', required=True, metavar='DIR', help='of the run that is made; must not hold one')


def main(args):
  run = convert.convert_from_hf(args.folder, args.workdir, lambda config: assign_overrides(config, args.overrides))
  say(
    f'{args.workdir}: {run.family.model_type}, {run.vocab:,} tokens; tfm generate, evaluate and attend read it'
  )
