"""Parses the text of a compiled module (HLO): instructions, operands, and how often each runs."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator


# Bytes per element; types that are not listed, such as tokens, count as 0.
BYTES_PER_ELEMENT = dict(
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
HOST_MEMORY = 5  # the memory space of the host
# Opcodes whose result equals their operand.
VALUE_PRESERVING_OPCODES = ('copy', 'bitcast', 'convert', 'reshape', 'copy-start', 'copy-done')
# The attributes that name a computation run by the instruction; the function of a reduction is not counted.
CALLED_COMPUTATION_ATTRIBUTES = (
  'calls',
  'branch_computations',
  'true_computation',
  'false_computation',
  'called_computations',
)


@dataclasses.dataclass(frozen=True)
class Shape:
  """One array; `memory` is 0 for main memory, 1 for on-chip memory of a TPU, and `HOST_MEMORY`."""

  dtype: str
  dims: tuple[int, ...]
  memory: int = 0

  @property
  def bytes(self) -> int:
    return math.ceil(math.prod(self.dims) * BYTES_PER_ELEMENT.get(self.dtype, 0))


@dataclasses.dataclass(frozen=True)
class Instruction:
  """`name = shapes opcode(operands), attributes`; `arguments` is the text between the parentheses."""

  name: str
  shapes: tuple[Shape, ...]
  opcode: str
  arguments: str
  attributes: str
  root: bool = False

  @functools.cached_property
  def operands(self) -> tuple[str, ...]:
    return tuple(re.findall(r'%([\w.\-]+)', self.arguments))

  def computations_in(self, attribute: str) -> tuple[str, ...]:
    """The computations that an attribute names."""
    matches = re.search(rf'\b{attribute}=(\{{[^}}]*\}}|%[\w.\-]+)', self.attributes)
    return tuple(re.findall(r'%([\w.\-]+)', matches[1])) if matches else ()

  @property
  def bytes(self) -> int:
    """Bytes of all its results, in any memory."""
    return sum(shape.bytes for shape in self.shapes)


@dataclasses.dataclass(frozen=True)
class Executed:
  """An instruction with its execution count.

  Attributes:
    computation: the computation that contains it; times: executions per device.
    trip_count_known: whether the trip counts of all surrounding loops are known.
    inside: the fusion or asynchronous call that contains it, if any.
  """

  instruction: Instruction
  computation: str
  times: int
  trip_count_known: bool
  inside: Instruction | None


@dataclasses.dataclass(frozen=True)
class Module:
  """Computation → instruction name → instruction."""

  computations: dict[str, dict[str, Instruction]]
  entry: str

  def executed(self) -> Iterator[Executed]:
    """Every executed instruction.

    All branches of a conditional count; a loop of unknown trip count counts once.
    """
    yield from self._walk(self.entry, 1, True, None)

  def _walk(self, computation, times, trip_count_known, inside):
    for instruction in self.computations[computation].values():
      yield Executed(instruction, computation, times, trip_count_known, inside)
      if instruction.opcode == 'while':
        n = self.trip_count_of(instruction, computation)
        for body in instruction.computations_in('body'):
          yield from self._walk(
            body, times * (1 if n is None else n), trip_count_known and n is not None, inside
          )
      elif instruction.opcode == 'call':
        for called in instruction.computations_in('to_apply'):
          yield from self._walk(called, times, trip_count_known, inside)
      elif instruction.opcode not in (
        'async-update',
        'async-done',
      ):  # these refer to the computation of their async-start
        part = instruction if instruction.opcode in ('fusion', 'fusion-start', 'async-start') else inside
        for attribute in CALLED_COMPUTATION_ATTRIBUTES:
          for called in instruction.computations_in(attribute):
            yield from self._walk(called, times, trip_count_known, part)

  def trip_count_of(self, loop: Instruction, inside: str) -> int | None:
    """The trip count of a loop; None if unknown.

    It comes from the compiler's annotation, or from a counter with constant start, step and limit.

    Args:
      inside: the computation that contains the loop.
    """
    if trip_count := re.search(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)', loop.attributes):
      return int(trip_count[1])
    condition, body = (self.computations[loop.computations_in(name)[0]] for name in ('condition', 'body'))
    compare, arguments = self.resolve(condition, root(condition).name, {})
    if compare.opcode != 'compare' or 'direction=LT' not in compare.attributes:
      return None
    (counter, _), (none, limit) = (self.affine(*argument) for argument in arguments)
    if counter is None or none is not None or limit is None or root(body).opcode != 'tuple':
      return None
    same, step = self.affine(body, root(body).operands[counter], {})
    initial = self.computations[inside][loop.operands[0]]
    start = (
      self.affine(self.computations[inside], initial.operands[counter], {})
      if initial.opcode == 'tuple'
      else (None, None)
    )
    if same != counter or not step or start[0] is not None or start[1] is None:
      return None
    return max(0, -(-(limit - start[1]) // step))

  def affine(self, computation, name, bindings) -> tuple[int | None, int | None]:
    """(i, n) for a parameter's element i plus n; (None, n) for the constant n; else (None, None)."""
    instruction, arguments = self.resolve(computation, name, bindings)
    if instruction.opcode == 'constant' and re.fullmatch(r'-?\d+', instruction.arguments):
      return None, int(instruction.arguments)
    if instruction.opcode == 'get-tuple-element' and arguments[0][0][arguments[0][1]].opcode == 'parameter':
      return tuple_index(instruction), 0
    if instruction.opcode == 'add':
      (i, m), (j, n) = (self.affine(*argument) for argument in arguments)
      if None not in (m, n) and None in (i, j):
        return (j if i is None else i), m + n
    return None, None

  def resolve(self, computation, name, bindings):
    """The instruction that produces a value, through copies and fusions, and its operands.

    Each operand comes with its computation and the bindings of that computation's parameters.
    """
    instruction = computation[name]
    if instruction.opcode == 'parameter' and int(instruction.arguments) in bindings:
      return self.resolve(*bindings[int(instruction.arguments)])
    if instruction.opcode in VALUE_PRESERVING_OPCODES:
      return self.resolve(computation, instruction.operands[0], bindings)
    source, element = instruction, None
    if instruction.opcode == 'get-tuple-element' and computation[instruction.operands[0]].opcode == 'fusion':
      source, element = computation[instruction.operands[0]], tuple_index(instruction)
    if source.opcode == 'fusion':
      fused = self.computations[source.computations_in('calls')[0]]
      inner = {i: (computation, operand, bindings) for i, operand in enumerate(source.operands)}
      end = root(fused).name if element is None else root(fused).operands[element]
      return self.resolve(fused, end, inner)
    return instruction, [(computation, operand, bindings) for operand in instruction.operands]


def root(computation: dict[str, Instruction]) -> Instruction:
  """The root instruction, whose value the computation returns."""
  return next(instruction for instruction in computation.values() if instruction.root)


def tuple_index(instruction: Instruction) -> int:
  """The index of a get-tuple-element."""
  return int(re.search(r'index=(\d+)', instruction.attributes)[1])


def parse_module(text: str) -> Module:
  """Parses the output of `jax.stages.Compiled.as_text`.

  Raises:
    ValueError: if the text has no entry computation.
  """
  computations, entry, current = {}, None, None
  # Some attributes, such as the metadata of custom kernels, span several lines.
  for line in re.sub(
    r'\n(?!(ROOT |ENTRY |%|\s|\}\n|\}$))', ' ', re.sub(r'\n\}(?=[^\n])', ' }', text)
  ).splitlines():
    if line.endswith('{') and '->' in line and (head := re.match(r'(ENTRY )?%?([\w.\-]+) \(', line)):
      current = computations.setdefault(head[2], {})
      entry = head[2] if head[1] else entry
    elif line.strip() == '}':
      current = None
    elif current is not None and (instruction := parse_instruction(line)):
      current[instruction.name] = instruction
  if entry is None:
    raise ValueError('the text is not a compiled module: it has no ENTRY computation')
  return Module(computations, entry)


def parse_instruction(line: str) -> Instruction | None:
  """Parses one line of a computation; None if it is no instruction."""
  head = re.match(r'\s*(ROOT )?%?([\w.\-]+) = ', line)
  if not head:
    return None
  rest = line[head.end() :]
  end = closing_parenthesis(rest, 0) + 1 if rest.startswith('(') else rest.index(' ')
  shapes, rest = rest[:end], rest[end:].lstrip()
  opcode = re.match(r'[\w\-]+', rest)[0]
  start = rest.index('(')
  end = closing_parenthesis(rest, start)
  return Instruction(
    head[2], tuple(parse_shapes(shapes)), opcode, rest[start + 1 : end], rest[end + 1 :], bool(head[1])
  )


def closing_parenthesis(text: str, start: int) -> int:
  """The index at which the parenthesis opened at `start` closes."""
  depth = 0
  for match in re.finditer(r'[()]', text[start:]):
    depth += 1 if match[0] == '(' else -1
    if not depth:
      return start + match.start()
  raise ValueError(f'a parenthesis does not close: {text[start : start + 80]}')


def parse_shapes(text: str) -> Iterator[Shape]:
  """`(f32[8,4]{1,0:T(8,128)S(1)}, s32[])` → its arrays."""
  for dtype, dims, layout in re.findall(r'(\w+)\[([\d,<=]*)\](\{[^}]*\})?', text):
    space = re.search(r'S\((\d+)\)', layout)
    yield Shape(
      dtype, tuple(int(n.lstrip('<=')) for n in dims.split(',') if n), int(space[1]) if space else 0
    )
