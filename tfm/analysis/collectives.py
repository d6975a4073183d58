"""What a compiled module sends between devices, read from its text: which collective, over which axes, how much."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfm.analysis.hlo import Executed, Module, Shape, parse


# Of an array of so many bytes a device sends this part, in a group of n, if every byte takes the shortest way: a ring's
# share, which no algorithm without arithmetic in the network betters (Patarasuk & Yuan 2009, §3).
SENT = {
  'all-reduce': lambda n: 2 * (n - 1) / n,
  'all-gather': lambda n: (n - 1) / n,
  'reduce-scatter': lambda n: (n - 1) / n,
  'all-to-all': lambda n: (n - 1) / n,
  'ragged-all-to-all': lambda n: (n - 1) / n,
  'collective-permute': lambda n: 1,
  'collective-broadcast': lambda n: 1,
}


# How a TPU gives its host what is for other slices, by the names of the exchange there.
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
  """One kind over one set of axes, in one execution of the module.

  Attributes:
    kind: one of `SENT`.
    axes: the mesh axes along which its devices differ, in the mesh's order.
    group: devices of a group. It is less than the axes have where only a part of them speak with each other.
    count: how often it runs; bytes: all that, of one device: the array that is gathered, is reduced or changes hands,
      whole, so that it is the same for an all-gather and the reduce-scatter that undoes it.
    between: whether the group are slices, with the slow network between them, of each of which one device takes part.
    least: whether some of them stand in a loop that does not tell how often it runs, and are counted once.
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
    """Bytes that a device sends, at least."""
    return math.ceil(self.bytes * SENT[self.kind](self.group))

  def __str__(self):
    slices, least = ' slices' * self.between, 'at least ' * self.least
    return f'{self.kind} over {" ".join(self.axes)} ({self.group}{slices}): {least}{self.count} times, {self.bytes:,} bytes'


def collectives(
  text: str | Module, mesh: Mapping[str, int], unknown: int | None = None, slow: str = 'data'
) -> list[Collective]:
  """The collectives of a compiled module, those of one kind and axes as one, in the order of kinds and axes.

  What stands in a loop counts as often as the loop runs, a pair of start and done once, and an all-reduce of which each
  device keeps a slice, as TPUs fuse them, as the reduce-scatter that it is. Groups of one device send nothing and are
  left out. Between slices of TPUs, what each device has of an array goes to the others by the hosts, and what stands before
  and after that is within a slice.

  Args:
    text: of `jax.stages.Compiled.as_text`, or parsed already.
    mesh: the sizes of its axes, in order, as `Mesh.shape` has them.
    unknown: how often a loop runs that does not tell, such as one that decodes until all rows have ended; None: at least once.
    slow: the mesh axis that lies over slices.
  """
  module = parse(text) if isinstance(text, str) else text
  found = {}
  for here in once(module):
    made, kind = here.instruction, base(here.instruction.opcode)
    if between := made.opcode == SEND:
      kind, size = between_slices(made.attributes)
      axes = (slow,)
    else:
      groups = member_groups(made.attributes, mesh)
      if kind != 'collective-permute' and max(map(len, groups)) == 1 or not groups:
        continue
      axes = varying(groups, mesh)
      size = 2 if kind == 'collective-permute' else max(map(len, groups))
    moved = payload(kind, made.shapes, here, module, size)
    kind = 'reduce-scatter' if kind == 'all-reduce' and scatters(here, module) else kind
    times = here.times * (1 if here.known or unknown is None else unknown)
    key = kind, axes, size, between
    count, total, least = found.get(key, (0, 0, False))
    found[key] = count + times, total + times * moved, least or not here.known and unknown is None
  order = {axis: i for i, axis in enumerate(mesh)}
  return [
    Collective(kind, axes, size, count, total, between, least)
    for (kind, axes, size, between), (count, total, least) in sorted(
      found.items(),
      key=lambda item: (
        item[0][3],
        list(SENT).index(item[0][0]),
        [order[axis] for axis in item[0][1]],
        item[0][2],
      ),
    )
  ]


def between_slices(attributes: str) -> tuple[str, int]:
  """(kind, slices) of what a TPU gives its host to exchange with other slices: `_xla_megascale_transfer_type="ALL_REDUCE"`,
  `_xla_megascale_target="{1,2}x{0:7}"` for slices 1 and 2, devices 0 … 7 of each."""
  kind = re.search(r'_xla_megascale_transfer_type="(\w+)"', attributes)[1]
  if kind == 'ONE_TO_ONE':
    return TRANSFERS[kind], 2
  slices = re.search(r'_xla_megascale_target="\{([\d,:]+)\}', attributes)[1]
  ends = [[int(n) for n in part.split(':')] for part in slices.split(',')]
  return TRANSFERS[kind], sum(part[-1] - part[0] + 1 for part in ends)


def base(opcode: str) -> str:
  """`all-gather-start` → 'all-gather'."""
  return opcode.removesuffix('-start')


def once(module: Module) -> Iterable[Executed]:
  """The collectives that run, each once, however many instructions it is spread over.

  A TPU goes on with what it has begun to gather in the fusions that compute meanwhile, and writes it into each of them; the
  chain begins where a custom call takes it up.
  """
  for here in module.executed():
    made = here.instruction
    if made.opcode == SEND and 'xla_megascale' in made.attributes:
      yield here
    if base(made.opcode) in SENT:
      chained = here.inside is not None and 'chain_id' in made.attributes
      if not chained or any(
        'AsyncCollectiveStart' in other.attributes and made.name in other.operands
        for other in module.computations[here.computation].values()
      ):
        yield here


def payload(kind: str, shapes: Sequence[Shape], here: Executed, module: Module, size: int) -> int:
  """Bytes of the whole array, from what goes in."""
  inside = module.computations[here.computation]
  given = sum(inside[name].bytes for name in here.instruction.operands if name in inside)
  return given * size if kind == 'all-gather' else given


def scatters(here: Executed, module: Module) -> bool:
  """Whether an all-reduce is fused with the slice that each device keeps of it."""
  fusion = here.inside
  return (
    fusion is not None
    and fusion.opcode == 'fusion'
    and 'all-reduce-scatter' in ''.join((fusion.name, here.computation)).replace('_', '-')
  )


def member_groups(attributes: str, mesh: Mapping[str, int]) -> list[tuple[int, ...]]:
  """The groups of devices that a collective names, as places in the mesh; of a permute its pairs.

  Written are they as lists, as `[4,2]<=[2,4]T(1,0)` (a counted array, reshaped, transposed, in rows), or as the axes of a
  mesh of the compiler's own, `mesh['a'=2,'b'=4] {'a'}`, of which an axis may be cut, `'b':(2)2`; none given are all.
  """
  devices = math.prod(mesh.values())
  if pairs := re.search(r'source_target_pairs=\{(.*?)\}\}', attributes + '}'):
    return [tuple(map(int, pair)) for pair in re.findall(r'\{(\d+),(\d+)', pairs[0])]
  if iota := re.search(r'replica_groups=(\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)', attributes):
    return [tuple(row) for row in counted(iota[1]).tolist()]
  if own := re.search(
    r'replica_groups=mesh\[([^\]]*)\]\s*(?:,?\s*device_ids=\((\[.*?\](?:T\([\d,]+\))?)\))?\s*\{([^}]*)\}',
    attributes,
  ):
    return mesh_groups(*own.groups())
  if lists := re.search(r'replica_groups=\{((?:\{[\d,]*\},?)+)\}', attributes):
    return [tuple(int(n) for n in row.split(',')) for row in re.findall(r'\{([\d,]+)\}', lists[1])]
  if 'replica_groups=' in attributes and not re.search(r'replica_groups=\{\}', attributes):
    raise ValueError(f'replica groups are written in a way that is not known here: {attributes[:200]}')
  return [tuple(range(devices))]


def mesh_groups(sizes: str, order: str | None, axes: str) -> list[tuple[int, ...]]:
  """The groups along some axes, or parts of axes, of a mesh that the compiler names."""
  shape = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", sizes)}
  places = np.arange(math.prod(shape.values())) if order is None else counted(order).reshape(-1)
  # An axis that is cut becomes three: what stands before the part, the part, and what stands behind it.
  cut = {
    name: (int(before), int(size)) for name, before, size in re.findall(r"'([^']+)':\((\d+)\)(\d+)", axes)
  }
  named = re.findall(r"'([^']+)'", axes)
  dims, along = [], []
  for name, size in shape.items():
    before, part = cut.get(name, (1, size))
    if name in named:
      along.append(len(dims) + 1)
    dims += [before, part, size // before // part]
  rest = [i for i in range(len(dims)) if i not in along]
  grouped = places.reshape(dims).transpose(rest + along)
  return [tuple(row) for row in grouped.reshape(-1, math.prod(dims[i] for i in along)).tolist()]


def counted(text: str) -> np.ndarray:
  """`[4,2]<=[2,4]T(1,0)`: so many numbers, in the shape that stands last, transposed, in the shape that stands first. The
  first may be left out; a list without `T`, of more than one number, then is the numbers themselves."""
  first, _, last = text.rpartition('<=')
  sizes, _, order = last.partition('T')
  sizes, order, first = ([int(n) for n in re.findall(r'\d+', part)] for part in (sizes, order, first))
  if not first and not order:
    return np.array(sizes)
  places = np.arange(math.prod(sizes)).reshape(sizes)
  places = places.transpose(order) if order else places
  return places.reshape(first) if first else places


def varying(groups: Sequence[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
  """The axes along which the devices of a group differ."""
  width = max(map(len, groups))
  rows = np.array([group for group in groups if len(group) == width])
  places = np.stack(np.unravel_index(rows, tuple(mesh.values())))
  differ = (places != places[:, :, :1]).any((1, 2))
  return tuple(axis for axis, does in zip(mesh, differ) if does)
