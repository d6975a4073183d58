"""Draws what a spec names, or prints what a config describes: parameters, FLOPs, memory; trains nothing.

  tfm inspect 'causal & window(64)'                     # a mask
  tfm inspect alibi --config.model.heads=4              # a position: bias, rotation, what is added to tokens
  tfm inspect 'wsd(0.2)' --config.training.steps=5000   # a learning-rate schedule
  tfm inspect --config=configs/lm.py
  tfm inspect --config=configs/lm.py --to=lm.png

A spec is drawn in the terminal, or into the picture that --to names, with the sizes of the config: its
length, heads, steps. Learned parameters of a position have their initial values.

Of a config it prints the fields, the parameter table (path, shape, dtype, logical axes, partition spec,
initializer, count), parameters and FLOPs per token by category, memory per device by category, on one CPU the
resident memory of the process, and the pipeline schedule; --to draws its masks, positions and schedule.
Nothing is allocated or compiled, so it works for any model and mesh on a laptop.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ml_collections import ConfigDict
from rich.table import Table

from tfm.analysis.console import new_table, wide_console
from tfm.analysis.drawable_fields import find_field
from tfm.config.schema import leaves, parts
from tfm.errors import require


if TYPE_CHECKING:
  from jax.sharding import AbstractMesh

  from tfm.models import flops, parameter_table
  from tfm.parallel import pipeline_parallelism


MAX_DEVICES = 2**20  # a mesh is an array of them


def arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    'spec', nargs='?', metavar='SPEC', help="a mask, a position or a schedule, such as 'causal & window(64)'"
  )
  parser.add_argument(
    '--config', metavar='FILE[:args]', help='the Python file of the config (default: the defaults)'
  )
  parser.add_argument(
    '--devices',
    type=int,
    metavar='N',
    help='number of devices of the mesh; default: the product of its sizes, or the attached devices',
  )
  parser.add_argument('--to', metavar='FILE', help='draw into this picture, such as mask.png or mask.svg')


def validate(args: argparse.Namespace) -> None:
  if args.spec is not None:
    find_field(args.spec)


def main(args: argparse.Namespace) -> None:
  if args.spec is not None:
    return draw_spec(args)
  from tfm.analysis import drawings, estimate
  from tfm.config import mesh_constraints
  from tfm.config.assemble import Experiment
  from tfm.config.validate import validate_parameter_patterns, validate_run
  from tfm.evaluation import panels
  from tfm.models import flops, parameter_table
  from tfm.parallel import sharding
  from tfm.runs.reference import open_reference

  config, experiment = args.config, Experiment(args.config)
  require(args.devices is None or args.devices >= 1, f'--devices={args.devices} must be at least 1')
  require(
    args.devices is None or args.devices <= MAX_DEVICES,
    f'--devices={args.devices} must be at most {MAX_DEVICES:,}',
  )
  devices = args.devices or estimate.device_count(config)
  validate_run(experiment, devices)
  mesh = estimate.abstract_mesh(config, devices)
  rules = experiment.rules
  vocab, source_vocab = estimate.vocabulary_sizes(experiment)
  model = experiment.build_model(vocab, source_vocab=source_vocab)
  reference = open_reference(experiment)
  boxed = estimate.abstract_state(experiment, model).replace(reference=reference and reference.abstract)
  validate_parameter_patterns(experiment, boxed.params)
  sharding.validate_divisibility(
    boxed.params, mesh, rules, tuple(mesh_constraints.list_constraints(experiment))
  )
  rows = parameter_table.rows(boxed.params, rules)
  kinds = estimate.memory_by_kind(experiment, vocab, source_vocab, boxed, mesh, rules)

  console = wide_console()
  console.print(config_text(config), end='', markup=False, highlight=False, soft_wrap=True)
  console.print(format_parameters(rows))
  console.print(cost_table(rows, flops.per_token(model, config.data.length), vocab, config.data.length))
  console.print(memory_table(kinds, mesh, estimate.rows_at_once(config, mesh, rules)))
  if plan := mesh_constraints.pipeline_schedule(config, mesh.shape):
    console.print(pipeline_table(plan, config))
  if args.to:
    drawn, missing = drawings.draw_config(experiment, model)
    panels.draw_panels(drawn, args.to)
    for text in (f'drawn: {args.to}', *(f'not drawn: {reason}' for reason in missing)):
      console.print(text, highlight=False, markup=False)


def draw_spec(args: argparse.Namespace) -> None:
  """Draws one spec in the terminal or into a picture."""
  from rich.text import Text

  from tfm.analysis import drawings
  from tfm.evaluation import panels

  require(args.devices is None, f'--devices={args.devices} is of a config; a spec is drawn without devices')
  drawn = drawings.draw_spec(args.spec, args.config)
  if args.to:
    panels.draw_panels(drawn, args.to)
    print(f'drawn: {args.to}')
    return
  console = wide_console()
  for panel in drawn:
    console.print(Text(panel.title, style='bold'), panel.to_text(), '', sep='\n', highlight=False)


def config_text(config: ConfigDict) -> str:
  """The config as text, one line per field."""
  return ''.join(f'{path} = {value!r}\n' for path, value in leaves(config))


def format_parameters(rows: list[parameter_table.Row]) -> Table:
  """A table with one row per parameter."""
  rich_table = new_table(
    'parameters', 'path', 'shape', 'dtype', 'logical axes', 'partition spec', 'initializer', '>count'
  )
  for row in rows:
    rich_table.add_row(
      '/'.join(row.path),
      ' × '.join(map(str, row.shape)),
      row.dtype,
      ' '.join(row.axes),
      ' '.join(row.spec),
      row.initializer,
      f'{row.count:,}',
    )
  return rich_table


def cost_table(rows: list[parameter_table.Row], cost: flops.Flops, vocab: int, length: int) -> Table:
  """A table of parameters and FLOPs per token by category."""
  rich_table = new_table(
    (f'vocabulary {vocab:,}, ' if vocab else '') + f'rows of {length:,} tokens',
    'kind',
    '>parameters',
    '>share',
    '>forward FLOPs per token',
    '>share',
  )
  counts = {}
  for row in rows:
    counts[row.kind] = counts.get(row.kind, 0) + row.count
  total = sum(counts.values())

  def line(name, count, spent):
    rich_table.add_row(
      name,
      f'{count:,}' if count else '',
      f'{count / total:.1%}' if count else '',
      f'{spent:,.0f}' if spent else '',
      f'{spent / cost.forward:.1%}' if spent else '',
    )

  for name in dict.fromkeys((*counts, *cost.kinds)):
    line(name, counts.get(name, 0), cost.kinds.get(name, 0))
  rich_table.add_section()
  line('all', total, cost.forward)
  rich_table.add_row('without the mask', '', '', f'{cost.unmasked:,.0f}', '')
  rich_table.add_row('training (3 × forward)', '', '', f'{cost.training:,.0f}', '')
  return rich_table


def memory_table(kinds: list[tuple[str, int, str]], mesh: AbstractMesh, rows: int) -> Table:
  """A table of the memory per device by category; on one CPU also of the process."""
  import jax

  from tfm.models import memory
  from tfm.parallel import mesh as meshes

  rich_table = new_table(
    f'one device of {mesh.size} ({meshes.format_sizes(mesh.shape)}), {rows} rows at once',
    'kind',
    '>bytes',
    '>',
    'how',
  )
  for name, count, how in kinds:
    rich_table.add_row(name, f'{count:,}', format_bytes(count), how)
  rich_table.add_section()
  total = sum(count for _, count, _ in kinds)
  rich_table.add_row('all', f'{total:,}', format_bytes(total), '')
  if jax.default_backend() == 'cpu' and mesh.size == 1:
    saved = sum(count for name, count, _ in kinds if name in ('parameters', 'optimizer'))
    for name, resident, how in (
      ('process', memory.resident_peak(total), 'resident peak of training steps, with imports and programs'),
      ('process, saving', memory.resident_peak(total, saved), 'while it also writes a checkpoint'),
    ):
      rich_table.add_row(name, f'{resident:,}', format_bytes(resident), f'estimate: {how}')
  return rich_table


def pipeline_table(plan: pipeline_parallelism.Schedule, config: ConfigDict) -> Table:
  """A table of the pipeline schedule and its bubble."""
  rich_table = new_table('pipeline over the mesh axis stage', '', '>', 'how')
  at_once = config.training.batch_size // config.training.gradient_accumulation // plan.microbatches
  source = 'config.pipeline.microbatches' if config.pipeline.microbatches else 'default: about four per stage'
  rich_table.add_row('stages', f'{plan.stages}', 'mesh.stage')
  for where, part in parts(config).items():
    if 'layers' in part:
      each = part.layers // (plan.stages * plan.repeats)
      rich_table.add_row(
        'layers of a stage',
        f'{plan.repeats} × {each}',
        f'of config.{where}.layers={part.layers}, in each round',
      )
  rich_table.add_row('microbatches', f'{plan.microbatches}', f'{source}; {at_once} rows each')
  rich_table.add_row('iterations', f'{plan.iterations}', 'microbatches × rounds + stages - 1')
  rich_table.add_row(
    'bubble', f'{plan.bubble:.1%}', '(stages - 1) / iterations: the fraction of time in which a stage is idle'
  )
  return rich_table


def format_bytes(count: int) -> str:
  """Formats bytes, such as `1.5 GiB`."""
  for unit in ('B', 'KiB', 'MiB', 'GiB'):
    if count < 1024:
      return f'{count:.4g} {unit}'
    count /= 1024
  return f'{count:.4g} TiB'
