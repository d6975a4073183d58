"""Compiles a run for devices that need not be attached, and reports its memory, FLOPs and times.

  tfm plan --config=configs/llama.py:3-8b --topology=v5p:4x4x8
  tfm plan --config=configs/llama.py:3-70b --topology=v5p:8x8x8 --slices=2 --config.mesh.data=2 \\
    --config.mesh.fsdp=-1
  tfm plan --config=configs/gpt2.py:xl --topology=v5e:16x16 --search --to=plans/gpt2-xl
  tfm plan --config=configs/llama.py:3-8b --topology=h100:8 --slices=4

The training step, and for decoders the step that decodes one token, is compiled ahead of time: for TPUs by
libtpu (the extra [tpu]), for GPU hosts by JAX's CUDA plugin (the extra [cuda-compiler]); neither needs the
hardware. Per device the command reports memory by category against capacity; FLOPs, memory traffic, and every
collective with its mesh axes; and by the published peaks of the chip the time of a step and tokens/s of a
chip if compute, memory and network overlap, and if they do not, which are no measurements. --topology=here
compiles for the attached devices. --search compares meshes, remat policies and microbatches; --compare, on
the mesh of the config, remat policies and presets of the compiler. --calibration adds the time at measured
rates. No data is read: if the vocabulary is
learned from text, set its size with --vocab.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import pathlib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tfm.analysis import topology_names
from tfm.analysis.console import new_table, wide_console
from tfm.commands.cli import validate_flag
from tfm.config.names import OneOf
from tfm.errors import require
from tfm.training.progress_line import console, print_status


if TYPE_CHECKING:
  from tfm.analysis import lowering, plan_report
  from tfm.analysis.mesh_search import Candidate
  from tfm.analysis.plan import StepPlan


MESH_AXIS = OneOf('data', 'parallel.mesh:AXES')


def arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('--config', required=True, metavar='FILE[:args]', help='the Python file of the config')
  add(
    '--topology',
    required=True,
    metavar='NAME',
    help='chips per dimension of a TPU slice, such as v5e:16x16 or v5p:4x4x8; its accelerator type, such as '
    'v5p-256, which counts the cores of v4, v5p and tpu7x, two per chip; the GPUs of a host, such as h100:8; '
    'or here for the attached devices',
  )
  add(
    '--slices',
    type=int,
    default=1,
    metavar='N',
    help='number of topologies, connected by a slow network (default: 1)',
  )
  add('--vocab', type=int, metavar='N', help='vocabulary size, if it depends on the text')
  add(
    '--rows',
    type=int,
    metavar='N',
    help='rows that the decoding step decodes at once; 0 omits the step (default: one per batch shard)',
  )
  several = parser.add_mutually_exclusive_group()
  several.add_argument('--search', action='store_true', help='search meshes, remat policies and microbatches')
  several.add_argument(
    '--compare',
    action='store_true',
    help='compare remat policies, and presets of config.compiler.flags, each alone on the mesh of the config',
  )
  add(
    '--axes',
    default='data,fsdp,tensor',
    metavar='A,B',
    help='mesh axes that --search varies (default: %(default)s)',
  )
  add(
    '--limit',
    type=int,
    default=16,
    metavar='N',
    help='most steps that --search or --compare compiles (default: %(default)s)',
  )
  add(
    '--calibration',
    metavar='FILE',
    help='results.jsonl of tfm benchmark device: also the time at the rates that it measured',
  )
  add('--to', metavar='DIR', help='directory for plan.json and plan.md')


def validate(args: argparse.Namespace) -> None:
  topology_names.require_topology(args.topology)
  for axis in args.axes.split(','):
    validate_flag('axes', MESH_AXIS, axis)


def main(args: argparse.Namespace) -> int:
  from tfm.analysis import calibration, lowering, mesh_search, plan, plan_report, topology
  from tfm.config import mesh_constraints
  from tfm.config.assemble import Experiment
  from tfm.parallel import chip_specs
  from tfm.parallel import mesh as meshes

  require(args.rows is None or args.rows >= 0, f'--rows={args.rows} must be 0 (none) or more')
  request = lowering.PlanRequest.from_experiment(Experiment(args.config), args.vocab)
  devices = topology.devices(args.topology, args.slices)
  if args.slices > 1:
    number = request.config.slices.count
    require(
      number in (-1, args.slices),
      f'config.slices.count={number} is not --slices={args.slices}; leave it at -1',
    )
    request.config.slices.count = args.slices  # GPUs do not report their slice
  described = topology_names.describe_topology(args.topology, args.slices)
  origin = plan_report.Origin(shlex.join(['tfm', *sys.argv[1:]]), described)
  chip = chip_specs.find_chip(devices[0].device_kind)
  capacity = plan.memory_capacity(devices[0], chip and chip.device)
  mesh_constraints.validate_slices(request.config, len(devices))
  if args.search:
    return compile_candidates(
      find_candidates(request, devices, capacity, args), request, devices, capacity, args, origin
    )
  lowering.validate_request(request, devices, capacity)
  if args.compare:
    found = mesh_search.list_comparisons(request, devices)
    return compile_candidates(found, request, devices, capacity, args, origin)
  mesh = meshes.make(request.config.mesh.to_dict(), devices, **request.config.slices)
  print_status(f'topology: {origin.topology}')
  print_status(describe_rows(request, mesh))
  plans = [
    plan_step('training', lambda: lowering.lower_training_step(request, mesh), mesh, request, args.slices)
  ]
  rows = rows_per_shard(request, mesh) if args.rows is None else args.rows
  if rows and lowering.supports_decoding(request):
    plans.append(
      plan_step(
        'decoding', lambda: lowering.lower_decoding_step(request, mesh, rows), mesh, request, args.slices
      )
    )
  if args.calibration:
    measured = calibration.read_calibration(pathlib.Path(args.calibration))
    print_status(f'calibration: {measured.machine}')
    plans = [
      dataclasses.replace(one, expected=one.bound and measured.expect(one.bound, one.chip)) for one in plans
    ]
  out = wide_console()
  for title, columns, lines in plan_report.tables(plans):
    out.print(table(title, columns, lines))
  if args.to:
    plan_report.write(plans, origin, pathlib.Path(args.to))
    out.print(f'plan: {pathlib.Path(args.to) / "plan.md"}', highlight=False)
  return 0


def describe_rows(request: lowering.PlanRequest, mesh) -> str:
  """Which rows of each batch the hosts read, from the very shares that training gives them."""
  from tfm.data.row_share import process_shares
  from tfm.parallel import sharding

  where = sharding.batch_sharding(mesh, request.experiment.rules)
  shares = process_shares(where, request.config.training.batch_size).values()
  rows, spans = (
    {size(share) for share in shares} for size in (lambda s: len(s.rows), lambda s: len(s.spans))
  )

  def span(numbers):
    return ' to '.join(map(str, sorted({min(numbers), max(numbers)})))

  return (
    f'hosts: {len(shares)}, each reading {span(rows)} of the {request.config.training.batch_size} rows of a '
    f'batch, in spans: {span(spans)}'
  )


def rows_per_shard(request: lowering.PlanRequest, mesh) -> int:
  """One row per shard of a batch."""
  return math.prod(mesh.shape[axis] for axis in dict(request.experiment.rules).get('batch') or ())


def plan_step(name: str, step, mesh, request: lowering.PlanRequest, slices: int) -> StepPlan:
  """Lowers, compiles and analyses a step, with a progress line."""
  from tfm.analysis import plan

  with working(f'{name}: compiling for {mesh.size} × {mesh.devices.flat[0].device_kind} …'):
    lowered = step()
    return plan.analyze_step(lowered, mesh, plan.compile_step(lowered), slices, request.config.slices.axis)


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
  """Shows a live line with the elapsed time; without a terminal logs the start and the end."""
  begin = time.perf_counter()
  if console.is_terminal:
    with Progress(
      SpinnerColumn(), TextColumn('{task.description}'), TimeElapsedColumn(), console=console, transient=True
    ) as line:
      line.add_task(text)
      yield
  else:
    print_status(text)
    yield
  print_status(f'{text.partition(":")[0]}: compiled in {time.perf_counter() - begin:.0f} s')


def find_candidates(
  request: lowering.PlanRequest, devices, capacity: int | None, args: argparse.Namespace
) -> list[Candidate]:
  """The candidates of --search.

  Raises:
    ValueError: if there are none.
  """
  from tfm.analysis import mesh_search

  found = mesh_search.list_candidates(request, devices, args.slices, args.axes.split(','), capacity)
  require(
    bool(found),
    f'--search finds no mesh of {len(devices)} devices over {args.axes} that divides the model and its '
    f'batch of {request.config.training.batch_size} rows, and '
    'whose devices hold the state; use more devices, or another config.training.batch_size',
  )
  return found


def compile_candidates(
  found: Sequence[Candidate],
  request: lowering.PlanRequest,
  devices,
  capacity: int | None,
  args: argparse.Namespace,
  origin: plan_report.Origin,
) -> int:
  """Compiles the candidates, of --search those that may be the best; returns 1 if none fits the `capacity` of
  a device.
  """
  from tfm.analysis import lowering, mesh_search, plan_report
  from tfm.config.assemble import Experiment
  from tfm.parallel import mesh as meshes

  require(args.limit >= 1, f'--limit={args.limit} must be at least 1')
  print_status(f'topology: {origin.topology}')
  compiled, known, begin = [], [], time.perf_counter()
  for i, one in enumerate(found):
    if len(compiled) == args.limit:
      print_status(f'{len(found) - i} of {len(found)} are skipped by --limit={args.limit}')
      break
    if args.search and mesh_search.is_redundant(one, known):
      continue
    trial = lowering.PlanRequest(Experiment(one.config(request.config)), request.vocab, request.source_vocab)
    if (
      capacity
      and (needs := mesh_search.estimate_bytes(trial, len(devices)))
      > mesh_search.ESTIMATE_TOLERANCE * capacity
    ):
      print_status(f'skipped, estimated at {plan_report.gib(needs)} of {plan_report.gib(capacity)}: {one}')
      known.append((one, False))
      continue
    elapsed = time.perf_counter() - begin
    most, done = min(args.limit, len(found)), len(compiled)
    left = f', about {elapsed / done * (most - done) / 60:.0f} minutes left' if done else ''
    print_status(f'{done + 1} of at most {most}{left}: {one}')
    mesh = meshes.make(trial.config.mesh.to_dict(), devices, **trial.config.slices)
    try:
      compiled.append(
        (
          one,
          plan_step('training', lambda: lowering.lower_training_step(trial, mesh), mesh, trial, args.slices),
        )
      )
    except ValueError as error:
      print_status(f'skipped: {error}')
      continue
    known.append((one, compiled[-1][1].memory.fits))
    print_status(f'  {plan_report.verdict(compiled[-1][1])}')
  out, winner = wide_console(), mesh_search.best_plan(compiled)
  columns, lines = search_rows(compiled, winner)
  out.print(table(f'{len(compiled)} candidates', columns, lines))
  if winner:
    for title, rest, rows in plan_report.tables([winner[1]]):
      out.print(table(title, rest, rows))
    out.print(f'best: {winner[0]}', highlight=False)
  else:
    out.print('no candidate fits', highlight=False)
  if args.to:
    folder = pathlib.Path(args.to)
    plan_report.write(
      [winner[1]] if winner else [],
      origin,
      folder,
      dict(
        best=str(winner[0]) if winner else None,
        tried=[dict(flags=str(one)) | plan_report.data(each) for one, each in compiled],
      ),
    )
    with (folder / 'plan.md').open('a', encoding='utf-8') as file:
      file.write('\n'.join(['', f'## {len(compiled)} compiled', '', *plan_report.pipes(columns, lines), '']))
    out.print(f'plan: {folder / "plan.md"}', highlight=False)
  return 0 if winner else 1


def search_rows(compiled, winner):
  """(columns, rows) of all compiled candidates, the best marked."""
  from tfm.analysis import plan_report

  columns = ('', 'mesh', 'remat', '>microbatches', 'compiler', '>memory', '>of the host', 'fits')
  columns += ('>FLOPs', '>collectives', '>time bound', 'bound by', '>MFU')
  lines = []
  for one, each in sorted(
    compiled, key=lambda pair: (pair[1].memory.fits is False, pair[1].bound.seconds if pair[1].bound else 0)
  ):
    b = each.bound
    lines.append(
      (
        '→' if winner and one == winner[0] else '',
        plan_report.sizes(dict(one.mesh)),
        one.remat,
        str(one.accumulation),
        one.flags,
        plan_report.gib(each.memory.needed),
        plan_report.gib(each.memory.host) if each.memory.host else '',
        {True: 'yes', False: 'no', None: '?'}[each.memory.fits],
        f'{each.products * each.devices / each.flops:.2f} ×' if each.products else '',
        f'{sum(sent.count for sent in each.collectives):,}',
        plan_report.seconds(b.seconds) if b else '',
        b.by if b else '',
        f'{each.mfu:.1%}' if b else '',
      )
    )
  return columns, lines


def table(title: str, columns, rows) -> Table:
  """A table for the terminal."""
  rich_table = new_table(title, *columns)
  for row in rows:
    rich_table.add_row(*row)
  return rich_table
