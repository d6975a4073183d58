"""The text of a compiled module (HLO): what each instruction makes, from what, and how often it runs."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator


# Bytes of an element; what is not here, such as a token, has none.
BYTES = dict(
  pred=1,
  s4=0.5,
  u4=0.5,
  s8=1,
  u8=1,
  s16=2,
  u16=2,
  s32=4,
  u32=4,
  s64=8,
  u64=8,
  f16=2,
  bf16=2,
  f32=4,
  f64=8,
  c64=8,
  c128=16,
  f8e4m3fn=1,
  f8e5m2=1,
  f8e4m3=1,
  f8e4m3fnuz=1,
  f8e5m2fnuz=1,
  f8e4m3b11fnuz=1,
  f8e3m4=1,
  f8e8m0fnu=1,
  f4e2m1fn=0.5,
)
# What gives what it was given.
SAME = ('copy', 'bitcast', 'convert', 'reshape', 'copy-start', 'copy-done')
# The attributes that name a computation which runs with its instruction; what a reduction applies is no run of its own.
CALLS = ('calls', 'branch_computations', 'true_computation', 'false_computation', 'called_computations')


@dataclasses.dataclass(frozen=True)
class Shape:
  """One array: `memory` is 0 for the main memory, on a TPU 1 for that beside the core."""

  dtype: str
  dims: tuple[int, ...]
  memory: int = 0

  @property
  def bytes(self) -> int:
    return math.ceil(math.prod(self.dims) * BYTES.get(self.dtype, 0))


@dataclasses.dataclass(frozen=True)
class Instruction:
  """`name = shapes opcode(operands), attributes`; `arguments` is what stands between the parentheses."""

  name: str
  shapes: tuple[Shape, ...]
  opcode: str
  arguments: str
  attributes: str
  root: bool = False

  @functools.cached_property
  def operands(self) -> tuple[str, ...]:
    return tuple(re.findall(r'%([\w.\-]+)', self.arguments))

  def named(self, attribute: str) -> tuple[str, ...]:
    """The computations that an attribute names."""
    found = re.search(rf'\b{attribute}=(\{{[^}}]*\}}|%[\w.\-]+)', self.attributes)
    return tuple(re.findall(r'%([\w.\-]+)', found[1])) if found else ()

  @property
  def bytes(self) -> int:
    """Of all that it makes, in any memory."""
    return sum(shape.bytes for shape in self.shapes)


@dataclasses.dataclass(frozen=True)
class Executed:
  """An instruction in its place.

  Attributes:
    computation: that it stands in; times: how often it runs, on each device.
    known: whether that is told by the loops around it; inside: the fusion or asynchronous call that it is a part of, if any.
  """

  instruction: Instruction
  computation: str
  times: int
  known: bool
  inside: Instruction | None


@dataclasses.dataclass(frozen=True)
class Module:
  """Instructions by name, by computation."""

  computations: dict[str, dict[str, Instruction]]
  entry: str

  def executed(self) -> Iterator[Executed]:
    """Every instruction that runs. All branches of a condition count as run; a loop whose repetitions are not told, as
    run once."""
    yield from self._walk(self.entry, 1, True, None)

  def _walk(self, computation, times, known, inside):
    for made in self.computations[computation].values():
      yield Executed(made, computation, times, known, inside)
      if made.opcode == 'while':
        n = self.repetitions(made, computation)
        for body in made.named('body'):
          yield from self._walk(body, times * (1 if n is None else n), known and n is not None, inside)
      elif made.opcode == 'call':
        for called in made.named('to_apply'):
          yield from self._walk(called, times, known, inside)
      elif made.opcode not in ('async-update', 'async-done'):  # these name what their async-start has begun
        part = made if made.opcode in ('fusion', 'async-start') else inside
        for attribute in CALLS:
          for called in made.named(attribute):
            yield from self._walk(called, times, known, part)

  def repetitions(self, loop: Instruction, inside: str) -> int | None:
    """How often a loop's body runs: as the compiler says, or by its counter, from where it begins, by as much as it grows,
    while it is below a constant; None if neither tells.

    Args:
      inside: the computation that the loop stands in.
    """
    if told := re.search(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)', loop.attributes):
      return int(told[1])
    condition, body = (self.computations[loop.named(name)[0]] for name in ('condition', 'body'))
    compare, arguments = self.resolve(condition, root(condition).name, {})
    if compare.opcode != 'compare' or 'direction=LT' not in compare.attributes:
      return None
    (counter, _), (none, limit) = (self.affine(*argument) for argument in arguments)
    if counter is None or none is not None or limit is None or root(body).opcode != 'tuple':
      return None
    same, step = self.affine(body, root(body).operands[counter], {})
    began = self.computations[inside][loop.operands[0]]
    start = (
      self.affine(self.computations[inside], began.operands[counter], {})
      if began.opcode == 'tuple'
      else (None, None)
    )
    if same != counter or not step or start[0] is not None or start[1] is None:
      return None
    return max(0, -(-(limit - start[1]) // step))

  def affine(self, computation, name, given) -> tuple[int | None, int | None]:
    """(i, n): a value that is n more than element i of what its computation is given; (None, n): n; (None, None): neither."""
    made, arguments = self.resolve(computation, name, given)
    if made.opcode == 'constant' and re.fullmatch(r'-?\d+', made.arguments):
      return None, int(made.arguments)
    if made.opcode == 'get-tuple-element' and arguments[0][0][arguments[0][1]].opcode == 'parameter':
      return index(made), 0
    if made.opcode == 'add':
      (i, m), (j, n) = (self.affine(*argument) for argument in arguments)
      if None not in (m, n) and None in (i, j):
        return (j if i is None else i), m + n
    return None, None

  def resolve(self, computation, name, given):
    """What makes a value, looked for through copies and into fusions; and its operands, each with its computation and with
    what that was given."""
    made = computation[name]
    if made.opcode == 'parameter' and int(made.arguments) in given:
      return self.resolve(*given[int(made.arguments)])
    if made.opcode in SAME:
      return self.resolve(computation, made.operands[0], given)
    of, wanted = made, None
    if made.opcode == 'get-tuple-element' and computation[made.operands[0]].opcode == 'fusion':
      of, wanted = computation[made.operands[0]], index(made)
    if of.opcode == 'fusion':
      fused = self.computations[of.named('calls')[0]]
      inner = {i: (computation, operand, given) for i, operand in enumerate(of.operands)}
      end = root(fused).name if wanted is None else root(fused).operands[wanted]
      return self.resolve(fused, end, inner)
    return made, [(computation, operand, given) for operand in made.operands]


def root(computation: dict[str, Instruction]) -> Instruction:
  """What a computation gives."""
  return next(made for made in computation.values() if made.root)


def index(made: Instruction) -> int:
  """Of a get-tuple-element."""
  return int(re.search(r'index=(\d+)', made.attributes)[1])


def parse(text: str) -> Module:
  """Reads what `jax.stages.Compiled.as_text` writes.

  Raises:
    ValueError: if there is no entry computation in it.
  """
  computations, entry, current = {}, None, None
  # A few attributes, such as what a custom kernel tells of itself, go over several lines.
  for line in re.sub(
    r'\n(?!(ROOT |ENTRY |%|\s|\}\n|\}$))', ' ', re.sub(r'\n\}(?=[^\n])', ' }', text)
  ).splitlines():
    if line.endswith('{') and '->' in line and (head := re.match(r'(ENTRY )?%?([\w.\-]+) \(', line)):
      current = computations.setdefault(head[2], {})
      entry = head[2] if head[1] else entry
    elif line.strip() == '}':
      current = None
    elif current is not None and (made := instruction(line)):
      current[made.name] = made
  if entry is None:
    raise ValueError('the text is no compiled module: it has no ENTRY computation')
  return Module(computations, entry)


def instruction(line: str) -> Instruction | None:
  """One line of a computation."""
  head = re.match(r'\s*(ROOT )?%?([\w.\-]+) = ', line)
  if not head:
    return None
  rest = line[head.end() :]
  end = closing(rest, 0) + 1 if rest.startswith('(') else rest.index(' ')
  shapes, rest = rest[:end], rest[end:].lstrip()
  opcode = re.match(r'[\w\-]+', rest)[0]
  start = rest.index('(')
  end = closing(rest, start)
  return Instruction(
    head[2], tuple(read_shapes(shapes)), opcode, rest[start + 1 : end], rest[end + 1 :], bool(head[1])
  )


def closing(text: str, start: int) -> int:
  """Where the parenthesis that opens at `start` closes."""
  depth = 0
  for found in re.finditer(r'[()]', text[start:]):
    depth += 1 if found[0] == '(' else -1
    if not depth:
      return start + found.start()
  raise ValueError(f'a parenthesis does not close: {text[start : start + 80]}')


def read_shapes(text: str) -> Iterator[Shape]:
  """`(f32[8,4]{1,0:T(8,128)S(1)}, s32[])` → its arrays."""
  for dtype, dims, layout in re.findall(r'(\w+)\[([\d,<=]*)\](\{[^}]*\})?', text):
    space = re.search(r'S\((\d+)\)', layout)
    yield Shape(
      dtype, tuple(int(n.lstrip('<=')) for n in dims.split(',') if n), int(space[1]) if space else 0
    )
