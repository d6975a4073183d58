"""Exports the model of a run, for other programs.

  tfm export --workdir=runs/gpt2 --to=models/mine
  tfm export --workdir=runs/lm --family=gpt2 --to=models/mine
  tfm export --workdir=runs/lm --format=stablehlo --to=models/program
  tfm export --workdir=runs/lm --format='onnx(cache=128)' --to=models/graph

huggingface writes a published checkpoint, config.json and model.safetensors: an imported run as its family;
set --family for other runs. The export fails with the first config field that the family does not support.
The tokenizer of an imported run is copied. stablehlo writes a program that JAX runs without tfm, onnx a graph
for ONNX Runtime, safetensors the parameters by their names. With cache=N a call reads the next tokens of rows
of up to N, for decoding.

--config.mesh.data=1 --config.mesh.fsdp=-1 divides the parameters among all devices, also among those of
several processes, which write huggingface together, as in `tfm train`; one tensor at a time is gathered
and written.
"""

import contextlib
import pathlib
from collections.abc import Iterator

import tfm.exports
from tfm import spec
from tfm.commands.cli import add_process_flags, add_run_flags, assign_overrides, validate_flag
from tfm.config.names import FromSlot
from tfm.errors import prefixing, require
from tfm.hf.model_types import validate_model_type


OVERRIDES = '--config.'  # --config.mesh.fsdp=N


def arguments(parser):
  add = parser.add_argument
  add_run_flags(parser)
  add('--to', required=True, metavar='FOLDER', help='output folder')
  add(
    '--format',
    default='huggingface',
    metavar='SPEC',
    help='huggingface, stablehlo(batch, length, cache, weights), onnx(batch, length, cache), safetensors '
    '(default: huggingface)',
  )
  add(
    '--family',
    default='',
    metavar='NAME',
    help='of huggingface: model_type of the family, such as llama (default: the family of the import)',
  )
  add_process_flags(parser)


def validate(args):
  validate_flag('format', FromSlot('huggingface', 'exports'), args.format)
  if args.family:
    with prefixing('--family='):
      validate_model_type(args.family)


def main(args):
  import jax

  from tfm.exports.protocol import Format
  from tfm.runs import load
  from tfm.training.progress_line import print_status

  with prefixing('--format='):
    made = spec.build(args.format, tfm.exports, Format, family=args.family)
  require(
    not args.family or made.has_families,
    f'--family={args.family} has no effect on --format={args.format}; leave it out',
  )
  require(
    made.supports_processes or jax.process_count() == 1,
    f'--format={args.format} is written by one process; leave out --processes',
  )
  run = load.load(
    args.workdir, args.step, args.average, lambda config: assign_overrides(config, args.overrides)
  )
  with make_folder(pathlib.Path(args.to)) as folder:
    written = made.write(run, args.workdir, folder)
  print_status(f'{args.to}: {written}')


@contextlib.contextmanager
def make_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Makes a folder for what the block writes. If the block raises before it writes, the folder is removed,
  and so are those above that were made for it.
  """
  missing = [folder for folder in (path, *path.parents) if not folder.exists()]
  path.mkdir(parents=True, exist_ok=True)
  try:
    yield path
  except BaseException:
    with contextlib.suppress(OSError):  # it is not empty
      for folder in missing:
        folder.rmdir()
    raise
