"""Exports the model of a run, for other programs.

  tfm export --workdir=runs/gpt2 --to=models/mine
  tfm export --workdir=runs/lm --family=gpt2 --to=models/mine
  tfm export --workdir=runs/lm --format=stablehlo --to=models/program
  tfm export --workdir=runs/lm --format='onnx(length=128)' --to=models/graph

huggingface writes a published checkpoint, config.json and model.safetensors: an imported run as its family;
set --family for other runs. The export fails with the first config field that the family does not support.
The tokenizer of an imported run is copied. stablehlo writes a program that JAX runs without tfm, onnx a graph
for ONNX Runtime, safetensors the parameters by their names.

--config.mesh.fsdp=-1 divides the parameters among all devices, also among those of several processes, which
write huggingface together, as in `tfm train`; one tensor at a time is gathered and written.
"""

from tfm.commands.cli import add_process_flags, add_run_flags, assign_overrides


OVERRIDES = '--config.'  # --config.mesh.fsdp=N


def arguments(parser):
  add = parser.add_argument
  add_run_flags(parser)
  add('--to', required=True, metavar='FOLDER', help='output folder')
  add(
    '--format',
    default='huggingface',
    metavar='SPEC',
    help='huggingface, stablehlo(batch, length, weights), onnx(batch, length), safetensors '
    '(default: huggingface)',
  )
  add(
    '--family',
    default='',
    metavar='NAME',
    help='of huggingface: model_type of the family, such as llama (default: the family of the import)',
  )
  add_process_flags(parser)


def main(args):
  import pathlib

  import jax

  import tfm.exports
  from tfm import spec
  from tfm.errors import require
  from tfm.exports.protocol import Format
  from tfm.runs import load
  from tfm.training.progress_line import print_status

  try:
    made = spec.build(args.format, tfm.exports, Format, family=args.family)
  except spec.SpecError as error:
    raise ValueError(f'--format={error}') from error
  require(
    not args.family or hasattr(made, 'family'),
    f'--family={args.family} has no effect on --format={args.format}; leave it out',
  )
  require(
    made.supports_processes or jax.process_count() == 1,
    f'--format={args.format} is written by one process; leave out --processes',
  )
  run = load.load(
    args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
  )
  folder = pathlib.Path(args.to)
  folder.mkdir(parents=True, exist_ok=True)
  print_status(f'{args.to}: {made.write(run, args.workdir, folder)}')
