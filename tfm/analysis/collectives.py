"""The collectives of a compiled module, read from its text: kind, mesh axes, count and bytes."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfm.analysis.hlo import Executed, Module, Shape, parse_module


# The fraction of an array that a device sends in a group of n: that of a ring, which is optimal without
# arithmetic in the network (Patarasuk & Yuan 2009, §3).
SENT_FRACTION = {
  'all-reduce': lambda n: 2 * (n - 1) / n,
  'all-gather': lambda n: (n - 1) / n,
  'reduce-scatter': lambda n: (n - 1) / n,
  'all-to-all': lambda n: (n - 1) / n,
  'ragged-all-to-all': lambda n: (n - 1) / n,
  'collective-permute': lambda n: 1,
  'collective-broadcast': lambda n: 1,
}


# Transfers of a TPU to its host for other slices: the names of the exchange → kinds of collectives.
SEND = 'send'
TRANSFERS = {
  'ALL_REDUCE': 'all-reduce',
  'REDUCE_SCATTER': 'reduce-scatter',
  'ALL_GATHER': 'all-gather',
  'ALL_TO_ALL': 'all-to-all',
  'ONE_TO_ONE': 'collective-permute',
}


@dataclasses.dataclass(frozen=True)
class Collective:
  """All collectives of one kind over one set of axes, in one execution of the module.

  Attributes:
    kind: a key of `SENT_FRACTION`.
    axes: the mesh axes along which its devices differ, in the mesh's order.
    group: devices per group; fewer than the axes have if only subgroups communicate.
    count: executions; bytes: total bytes of the full arrays that are gathered, reduced or exchanged, so that
      an all-gather and the inverse reduce-scatter have equal bytes.
    between: whether the group consists of slices, connected by the slow network, with one device of each.
    least: whether count and bytes are lower bounds, because a loop of unknown trip count counts once.
  """

  kind: str
  axes: tuple[str, ...]
  group: int
  count: int
  bytes: int
  between: bool = False
  least: bool = False

  @property
  def sent(self) -> int:
    """Minimum bytes that a device sends."""
    return math.ceil(self.bytes * SENT_FRACTION[self.kind](self.group))

  def __str__(self):
    slices, least = ' slices' * self.between, 'at least ' * self.least
    axes = ' '.join(self.axes)
    return f'{self.kind} over {axes} ({self.group}{slices}): {least}{self.count} times, {self.bytes:,} bytes'


def find_collectives(
  text: str | Module, mesh: Mapping[str, int], unknown_trip_count: int | None = None, slice_axis: str = 'data'
) -> list[Collective]:
  """The collectives of a compiled module, merged by kind and axes and sorted by them.

  A collective in a loop counts once per iteration, a start/done pair once, and an all-reduce fused with a
  slice (as on TPUs) as a reduce-scatter. Groups of one device send nothing and are omitted. Between TPU
  slices the devices exchange their shards through their hosts; the collectives before and after are within a
  slice.

  Args:
    text: from `jax.stages.Compiled.as_text`, or a parsed module.
    mesh: the axis sizes in order, as in `Mesh.shape`.
    unknown_trip_count: the count of loops whose trip count is unknown, such as a decoding loop; None counts
      them once as a lower bound.
    slice_axis: the mesh axis that spans slices.
  """
  module = parse_module(text) if isinstance(text, str) else text
  totals = {}
  for execution in unique_collectives(module):
    instruction, kind = execution.instruction, base_opcode(execution.instruction.opcode)
    if between := instruction.opcode == SEND:
      kind, size = parse_slice_transfer(instruction.attributes)
      axes = (slice_axis,)
    else:
      groups = parse_groups(instruction.attributes, mesh)
      if kind != 'collective-permute' and max(map(len, groups)) == 1 or not groups:
        continue
      axes = varying_axes(groups, mesh)
      size = 2 if kind == 'collective-permute' else max(map(len, groups))
    array_size = array_bytes(kind, instruction.shapes, execution, module, size)
    kind = 'reduce-scatter' if kind == 'all-reduce' and is_fused_reduce_scatter(execution, module) else kind
    times = execution.times * (
      1 if execution.trip_count_known or unknown_trip_count is None else unknown_trip_count
    )
    key = kind, axes, size, between
    count, total, least = totals.get(key, (0, 0, False))
    totals[key] = (
      count + times,
      total + times * array_size,
      least or not execution.trip_count_known and unknown_trip_count is None,
    )
  order = {axis: i for i, axis in enumerate(mesh)}
  return [
    Collective(kind, axes, size, count, total, between, least)
    for (kind, axes, size, between), (count, total, least) in sorted(
      totals.items(),
      key=lambda item: (
        item[0][3],
        list(SENT_FRACTION).index(item[0][0]),
        [order[axis] for axis in item[0][1]],
        item[0][2],
      ),
    )
  ]


def parse_slice_transfer(attributes: str) -> tuple[str, int]:
  """(kind, number of slices) of a TPU's transfer to its host for other slices.

  The attributes are `_xla_megascale_transfer_type="ALL_REDUCE"` and `_xla_megascale_target="{1,2}x{0:7}"` for
  slices 1 and 2, devices 0 … 7 of each.
  """
  kind = re.search(r'_xla_megascale_transfer_type="(\w+)"', attributes)[1]
  if kind == 'ONE_TO_ONE':
    return TRANSFERS[kind], 2
  slices = re.search(r'_xla_megascale_target="\{([\d,:]+)\}', attributes)[1]
  ends = [[int(n) for n in part.split(':')] for part in slices.split(',')]
  return TRANSFERS[kind], sum(part[-1] - part[0] + 1 for part in ends)


def base_opcode(opcode: str) -> str:
  """`all-gather-start` → 'all-gather'."""
  return opcode.removesuffix('-start')


def unique_collectives(module: Module) -> Iterable[Executed]:
  """Every executed collective once, even if it spans several instructions.

  A TPU overlaps an all-gather with computation by repeating it in a chain of fusions; the chain starts at the
  instruction that a custom call uses.
  """
  for execution in module.executed():
    instruction = execution.instruction
    if instruction.opcode == SEND and 'xla_megascale' in instruction.attributes:
      yield execution
    if base_opcode(instruction.opcode) in SENT_FRACTION:
      chained = execution.inside is not None and 'chain_id' in instruction.attributes
      if not chained or any(
        'AsyncCollectiveStart' in other.attributes and instruction.name in other.operands
        for other in module.computations[execution.computation].values()
      ):
        yield execution


def array_bytes(kind: str, shapes: Sequence[Shape], execution: Executed, module: Module, size: int) -> int:
  """Bytes of the full array, from the operands."""
  inside = module.computations[execution.computation]
  operand_bytes = sum(inside[name].bytes for name in execution.instruction.operands if name in inside)
  return operand_bytes * size if kind == 'all-gather' else operand_bytes


def is_fused_reduce_scatter(execution: Executed, module: Module) -> bool:
  """Whether an all-reduce is fused with the slice of it that each device keeps."""
  fusion = execution.inside
  return (
    fusion is not None
    and fusion.opcode == 'fusion'
    and 'all-reduce-scatter' in ''.join((fusion.name, execution.computation)).replace('_', '-')
  )


def parse_groups(attributes: str, mesh: Mapping[str, int]) -> list[tuple[int, ...]]:
  """The device groups of a collective, as indices into the mesh; the pairs of a permute.

  The notation is a list of lists, an iota `[4,2]<=[2,4]T(1,0)`, or axes of a mesh of the compiler,
  `mesh['a'=2,'b'=4] {'a'}`, possibly of a sub-axis `'b':(2)2`. Without groups it is all devices.
  """
  devices = math.prod(mesh.values())
  if pairs := re.search(r'source_target_pairs=\{(.*?)\}\}', attributes + '}'):
    return [tuple(map(int, pair)) for pair in re.findall(r'\{(\d+),(\d+)', pairs[0])]
  if iota := re.search(r'replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)', attributes):
    return [tuple(row) for row in parse_iota(iota[1]).tolist()]
  if own := re.search(
    r'replica_groups=mesh\[([^\]]*)\]\s*(?:,?\s*device_ids=\((\[.*?\](?:T\([\d,]+\))?)\))?\s*\{([^}]*)\}',
    attributes,
  ):
    return parse_mesh_groups(*own.groups())
  if lists := re.search(r'replica_groups=\{((?:\{[\d,]*\},?)+)\}', attributes):
    return [tuple(int(n) for n in row.split(',')) for row in re.findall(r'\{([\d,]+)\}', lists[1])]
  if 'replica_groups=' in attributes and not re.search(r'replica_groups=\{\}', attributes):
    raise ValueError(f'unsupported notation of replica groups: {attributes[:200]}')
  return [tuple(range(devices))]


def parse_mesh_groups(sizes: str, order: str | None, axes: str) -> list[tuple[int, ...]]:
  """The groups along some axes or sub-axes of a mesh of the compiler."""
  shape = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", sizes)}
  device_ids = np.arange(math.prod(shape.values())) if order is None else parse_iota(order).reshape(-1)
  # A split axis becomes three: before the sub-axis, the sub-axis, and after it.
  splits = {
    name: (int(before), int(size)) for name, before, size in re.findall(r"'([^']+)':\((\d+)\)(\d+)", axes)
  }
  axis_names = re.findall(r"'([^']+)'", axes)
  dims, along = [], []
  for name, size in shape.items():
    before, part = splits.get(name, (1, size))
    if name in axis_names:
      along.append(len(dims) + 1)
    dims += [before, part, size // before // part]
  rest = [i for i in range(len(dims)) if i not in along]
  grouped = device_ids.reshape(dims).transpose(rest + along)
  return [tuple(row) for row in grouped.reshape(-1, math.prod(dims[i] for i in along)).tolist()]


def parse_iota(text: str) -> np.ndarray:
  """Parses `[4,2]<=[2,4]T(1,0)`: an iota of shape (2, 4), transposed, reshaped to (4, 2).

  The first shape may be missing; then a list without `T` is the numbers themselves.
  """
  first, _, last = text.rpartition('<=')
  sizes, _, order = last.partition('T')
  sizes, order, first = ([int(n) for n in re.findall(r'\d+', part)] for part in (sizes, order, first))
  if not first and not order:
    return np.array(sizes)
  device_ids = np.arange(math.prod(sizes)).reshape(sizes)
  device_ids = device_ids.transpose(order) if order else device_ids
  return device_ids.reshape(first) if first else device_ids


def varying_axes(groups: Sequence[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
  """The mesh axes along which the devices of a group differ."""
  largest = max(map(len, groups))
  rows = np.array([group for group in groups if len(group) == largest])
  device_ids = np.stack(np.unravel_index(rows, tuple(mesh.values())))
  is_varying = (device_ids != device_ids[:, :, :1]).any((1, 2))
  return tuple(axis for axis, does in zip(mesh, is_varying) if does)
