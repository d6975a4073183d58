"""Formats plans: tables for the terminal, Markdown and JSON files."""

import dataclasses
import importlib.metadata
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

from tfm.analysis.plan import StepPlan
from tfm.parallel.chip_specs import GIB
from tfm.training.atomic_files import write_atomically


Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def tables(plans: Sequence[StepPlan]) -> list[Table]:
  """(title, columns, rows) of each step's tables; '>' before a column right-aligns it."""
  found = []
  for one in plans:
    found += [
      (
        f'{one.name}: one device of {one.devices} × {one.device} ({sizes(one.mesh)})',
        ('quantity', '>', 'explanation'),
        summary(one),
      ),
      (f'{one.name}: memory of a device', ('kind', '>bytes', '>'), memory(one)),
    ]
    if one.collectives:
      least = ' (≥: in a loop of unknown trip count, counted once)' * any(
        each.least for each in one.collectives
      )
      found.append(
        (
          f'{one.name}: sent by a device in a step{least}',
          ('collective', 'axes', '>devices', '>times', '>of arrays of', '>sent', '>at least'),
          sent(one),
        )
      )
  return found


def sizes(mesh: Mapping[str, int]) -> str:
  """The axes of a size above 1, such as `fsdp 64 × tensor 2`."""
  return ' × '.join(f'{axis} {size}' for axis, size in mesh.items() if size > 1) or 'not sharded'


def verdict(one: StepPlan) -> str:
  """Whether the step fits into memory, and by how much."""
  room = None if one.memory.capacity is None else one.memory.capacity - one.memory.needed
  if one.memory.fits is None:
    return f'needs {gib(one.memory.needed)}; the capacity is unknown'
  if one.memory.fits and room < 0:
    parts = gib(one.memory.needed)
    return f'fits in {gib(one.memory.capacity)}; its parts, not all of them at once, are {parts}'
  if one.memory.fits:
    return f'fits: {gib(one.memory.needed)} of {gib(one.memory.capacity)}, {gib(room)} left'
  if room is None or room >= 0:
    return f'does not fit: {one.error}'
  return f'does not fit: {gib(one.memory.needed)} of {gib(one.memory.capacity)}, {gib(-room)} too many'


def summary(one: StepPlan) -> list[tuple[str, ...]]:
  """The rows of FLOPs, memory traffic and time bounds."""
  rows = [
    ('memory needed', verdict(one), ''),
    ('model FLOPs', f'{one.flops / one.devices:.3e}', 'per device and step'),
  ]
  if one.error:
    return rows
  again = one.products * one.devices / one.flops if one.flops else 0
  why = (
    'the model’s FLOPs, not all of which are compiled to products'
    if one.name == 'decoding'
    else 'a loop has an unknown trip count'
  )
  how = f'as compiled: {again:.2f} × the model’s' if one.is_complete else f'at least: {why}'
  rows += [
    ('FLOPs', f'{one.products:.3e}', f'per device and step, {how}'),
    ('memory traffic', gib(one.moved), 'at least, by the compiled instructions'),
  ]
  if not one.bound:
    return rows + [('time', 'unknown', 'no published peak of this chip is in the table')]
  b = one.bound
  rows += [
    ('time of compute', seconds(b.compute), f'FLOPs / {one.chip.flops / 1e12:,.0f} TFLOP/s'),
    ('time of memory', seconds(b.memory), f'traffic / {one.chip.bandwidth / 1e9:,.0f} GB/s'),
    ('time of links', seconds(b.links), f'sent / {one.chip.links / 1e9:,.0f} GB/s, or the share of an axis'),
  ]
  if b.network:
    rows.append(
      ('time of network', seconds(b.network), f'sent between slices / {one.chip.network / 1e9:,.1f} GB/s')
    )
  if b.host:
    moved = f'{gib(one.to_host)} to the host and {gib(one.from_host)} back'
    rows.append(
      ('time of host', seconds(b.host), f'{moved}, both ways at once / {one.chip.host / 1e9:,.0f} GB/s')
    )
  if one.expected:
    ends = one.expected.seconds, one.expected.serial_seconds
    rows.append(
      ('time expected', between(ends, seconds), f'likewise, at measured rates; bound by {one.expected.by}')
    )
  word = 'generated' if one.name == 'decoding' else 'trained'
  return rows + [
    ('time of a step', between((b.seconds, b.serial_seconds), seconds), f'{OVERLAP}; bound by {b.by}'),
    ('tokens/s a chip', between(one.rates_per_chip), f'{word} without overlap, and if all overlap'),
    ('tokens/s', between(one.rates), f'{word} by all devices; {one.tokens:,} a step'),
    ('MFU', f'{one.mfu:.1%}', 'at most'),
  ]


OVERLAP = 'if all of these overlap, and if none does'


def between(ends: Sequence[float], text: Callable[[float], str] = '{:,.0f}'.format) -> str:
  """(744, 861) → 'between 744 and 861'."""
  return f'between {text(ends[0])} and {text(ends[1])}'


def memory(one: StepPlan) -> list[tuple[str, ...]]:
  """The rows of memory by category."""
  rows = [(name, f'{size:,}', gib(size)) for name, size in one.memory.kinds.items()]
  rows.append(('needed', f'{one.memory.needed:,}', gib(one.memory.needed)))
  if one.memory.capacity is not None:
    rows.append(('capacity', f'{one.memory.capacity:,}', gib(one.memory.capacity)))
  if one.memory.host:
    rows.append(('in host memory', f'{one.memory.host:,}', gib(one.memory.host)))
  return rows


def sent(one: StepPlan) -> list[tuple[str, ...]]:
  """The rows of collectives by kind and axes."""
  rows = []
  for each in one.collectives:
    axes = ' '.join(each.axes)
    least = one.bound and each.sent and (one.bound.network if each.between else one.bound.axes.get(axes))
    alike = sum(
      other.sent for other in one.collectives if (other.axes, other.between) == (each.axes, each.between)
    )
    least_of = '≥ ' * each.least
    rows.append(
      (
        each.kind,
        axes,
        f'{each.group} slices' if each.between else str(each.group),
        f'{least_of}{each.count:,}',
        least_of + gib(each.bytes),
        least_of + gib(each.sent),
        seconds(least * each.sent / alike) if least else '',
      )
    )
  return rows


@dataclasses.dataclass(frozen=True)
class Origin:
  """What a plan was made from.

  Attributes:
    command: with all its flags; topology: the devices, as `topology_names.describe_topology` says.
  """

  command: str
  topology: str


def markdown(plans: Sequence[StepPlan], origin: Origin) -> str:
  """The tables in Markdown, with the command and versions."""
  lines = [
    '# Plan',
    '',
    f'`{origin.command}`',
    '',
    f'For {origin.topology}. Compiled, not run, with {versions(plans)}. Times and rates are those of the '
    'published peaks: the least time if all overlap, the sum if nothing does.',
  ]
  for title, columns, rows in tables(plans):
    lines += ['', f'## {title}', '', *pipes(columns, rows)]
  return '\n'.join(lines) + '\n'


def pipes(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
  """The lines of a Markdown table."""
  lines = [
    ' | '.join(column.removeprefix('>') for column in columns),
    '|'.join('---:' if column.startswith('>') else '---' for column in columns),
  ]
  lines += [' | '.join(row) for row in rows]
  return [f'| {line} |' for line in lines]


def data(one: StepPlan) -> dict:
  """A plan as JSON data."""
  result = dataclasses.asdict(one) | dict(
    devices=one.devices,
    fits=one.memory.fits,
    tokens_per_second=one.rates,
    tokens_per_second_per_chip=one.rates_per_chip,
    mfu=one.mfu,
    collectives=[dataclasses.asdict(each) | dict(sent=each.sent) for each in one.collectives],
  )
  if one.bound:
    result['bound'] |= dict(
      seconds=one.bound.seconds, serial_seconds=one.bound.serial_seconds, by=one.bound.by
    )
  return result


def write(plans: Sequence[StepPlan], origin: Origin, folder: pathlib.Path, more: Mapping = {}) -> None:
  """Writes plan.json and plan.md."""
  folder.mkdir(parents=True, exist_ok=True)
  result = dataclasses.asdict(origin) | dict(versions=versions(plans), plans=[data(one) for one in plans])
  write_atomically(folder / 'plan.json', json.dumps(result | dict(more), indent=2) + '\n')
  write_atomically(folder / 'plan.md', markdown(plans, origin))


# Prefix of a device kind → packages with its compiler.
COMPILERS = {'TPU': ('libtpu',), 'NVIDIA': ('jax-cuda12-plugin', 'jax-cuda13-plugin')}


def versions(plans: Sequence[StepPlan]) -> str:
  """The versions of JAX and the compilers."""
  found = []
  makers = [
    name
    for kind, names in COMPILERS.items()
    if any(one.device.startswith(kind) for one in plans)
    for name in names
  ]
  for name in ('jax', 'jaxlib', *makers):
    try:
      found.append(f'{name} {importlib.metadata.version(name)}')
    except importlib.metadata.PackageNotFoundError:
      continue
  return ', '.join(found)


def gib(count: float) -> str:
  """Formats bytes as `12.34 GiB`, or small numbers as `5.6 MiB`."""
  return f'{count / GIB:,.2f} GiB' if abs(count) >= GIB / 10 else f'{count / 2**20:,.2f} MiB'


def seconds(count: float) -> str:
  """Formats seconds as `1.23 s`, `45.6 ms` or `7.8 µs`."""
  for unit, size in (('s', 1), ('ms', 1e-3), ('µs', 1e-6)):
    if count >= size:
      return f'{count / size:.3g} {unit}'
  return f'{count / 1e-6:.3g} µs'
