"""What one device does in a compiled module, read from its text: products, and bytes to and from its main memory."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

from tfm.analysis.hlo import Instruction, Module, Shape, index, root


# They move nothing: names for what is there, what another instruction has begun, and what runs computations of its own.
STILL = (
  'parameter',
  'constant',
  'tuple',
  'get-tuple-element',
  'bitcast',
  'while',
  'conditional',
  'call',
  'after-all',
  'iota',
  'partition-id',
  'replica-id',
  'async-start',
  'async-update',
  'async-done',
  'optimization-barrier',
  'add-dependency',
  'opt-barrier',
  'domain',
  'infeed',
  'outfeed',
)
SLICES = ('dynamic-slice', 'slice', 'gather')
# Custom calls of a TPU's compiler that are no work of their own.
MARKS = ('AllocateBuffer', 'AsyncCollective', 'ConcatBitcast', 'AssumeGatherIndicesInBound', 'Sharding')


@dataclasses.dataclass(frozen=True)
class Work:
  """Of one device, in one execution.

  Attributes:
    products: FLOPs of matrix products and convolutions, a multiplication and its addition being two; those of custom
      kernels (Pallas, cuDNN) are not in the text.
    bytes: read from and written to the main memory, at least: what a fusion is given once, however often it reads it, of
      what it cuts a slice from or writes a slice into the slice alone, and nothing of what lies beside the core.
  """

  products: int
  bytes: int


def work(module: Module) -> Work:
  """Loops count as often as they run, those that do not tell once; see `Module.executed`."""
  products = moved = 0
  for here in module.executed():
    inside, made = module.computations[here.computation], here.instruction
    if made.opcode in PRODUCTS:
      products += here.times * PRODUCTS[made.opcode](
        made, [shape for name in made.operands for shape in inside[name].shapes[:1]]
      )
    if here.inside is None:
      moved += here.times * bytes_of(made, inside, module)
  return Work(products, moved)


def dot(made: Instruction, given: list[Shape]) -> int:
  """2 · the result's elements · the contracted sizes."""
  contracted = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', made.attributes)
  sizes = [given[0].dims[int(axis)] for axis in contracted[1].split(',') if axis] if contracted else []
  return 2 * math.prod(made.shapes[0].dims) * math.prod(sizes)


def convolution(made: Instruction, given: list[Shape]) -> int:
  """2 · batch · features in · features out · the pairs of places in result and kernel that meet the input.

  A TPU's compiler makes convolutions of all products, and spatial axes of heads and batches, with dilation and padding such
  that most pairs meet nothing.
  """
  lhs, rhs, out = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', made.attributes).groups()
  sizes = [
    dict(zip(labels, shape.dims))
    for labels, shape in ((lhs, given[0]), (rhs, given[1]), (out, made.shapes[0]))
  ]
  window = {
    name: text.split('x')
    for name, text in re.findall(
      r'(\w+)=([\d_x\-]+)', (re.search(r'window=\{([^}]*)\}', made.attributes) or [''] * 2)[1]
    )
  }

  def numbers(name, default, axis):
    return window[name][axis] if name in window else default

  total = sizes[2]['b'] * sizes[2]['f'] * sizes[1]['i']
  for axis in range(sum(label.isdigit() for label in lhs)):
    label = str(axis)
    stride, dilated, spread = (int(numbers(name, 1, axis)) for name in ('stride', 'lhs_dilate', 'rhs_dilate'))
    low = int(str(numbers('pad', '0_0', axis)).split('_')[0])
    total *= meeting(sizes[0][label], sizes[1][label], sizes[2][label], stride, low, dilated, spread)
  return 2 * total


@functools.cache
def meeting(given: int, kernel: int, made: int, stride: int, low: int, dilated: int, spread: int) -> int:
  """Pairs of a place in the result and one in the kernel between which an input stands, along one axis."""
  return sum(
    0 <= at < given * dilated and at % dilated == 0
    for o in range(made)
    for at in range(o * stride - low, o * stride - low + kernel * spread, spread)
  )


def library(made: Instruction, given: list[Shape]) -> int:
  """A product that a GPU's library makes, and says how; of other custom calls nothing is known."""
  if '__cublas' not in made.attributes:
    return 0
  contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', made.attributes)
  axes = [int(axis) for axis in re.findall(r'\d+', contracted[1])] if contracted else []
  return 2 * math.prod(made.shapes[0].dims) * math.prod(given[0].dims[axis] for axis in axes)


PRODUCTS = {'dot': dot, 'convolution': convolution, 'custom-call': library}


def bytes_of(made: Instruction, inside: dict[str, Instruction], module: Module) -> int:
  """What an instruction that is no part of a fusion reads and writes."""
  if made.opcode in STILL or made.opcode.endswith('-done') or any(mark in made.attributes for mark in MARKS):
    return 0
  given = [inside[name] for name in made.operands]
  if made.opcode == 'fusion':
    fused = module.computations[made.named('calls')[0]]
    read = sum(
      least(shape.bytes, reads(fused, i, module)) for i, one in enumerate(given) for shape in main(one.shapes)
    )
    outputs = ends(fused) if len(made.shapes) > 1 else [root(fused)]
    return read + sum(
      least(shape.bytes, writes(fused, end, module))
      for shape, end in zip(made.shapes, outputs)
      if shape.memory == 0
    )
  results = made.shapes
  if made.opcode.endswith('-start'):
    # (what is given, what comes of it, flags): as many results as there are operands.
    results = (
      made.shapes[:1]
      if made.opcode == 'copy-start'
      else made.shapes[len(given) : 2 * len(given)] or made.shapes
    )
  written = sum(shape.bytes for shape in main(results))
  if made.opcode in SLICES or made.opcode == 'slice-start':
    return written + (sum(shape.bytes for shape in results) if main(given[0].shapes) else 0)
  if made.opcode == 'dynamic-update-slice':
    return 2 * given[1].bytes
  return written + sum(shape.bytes for one in given for shape in main(one.shapes))


def main(shapes: tuple[Shape, ...]) -> list[Shape]:
  """Those that lie in the main memory."""
  return [shape for shape in shapes if shape.memory == 0]


def least(whole: int, part: int | None) -> int:
  """`part` where it is known, which is less."""
  return whole if part is None else min(whole, part)


def ends(fused: dict[str, Instruction]) -> list[Instruction]:
  """What each result of a fusion is made by."""
  end = root(fused)
  return [fused[name] for name in end.operands] if end.opcode == 'tuple' else [end] * len(end.shapes)


def reads(fused: dict[str, Instruction], parameter: int, module: Module) -> int | None:
  """Bytes of a parameter that a fusion reads; None: all."""
  [given] = [
    made for made in fused.values() if made.opcode == 'parameter' and int(made.arguments) == parameter
  ]
  total = 0
  for user, place in users(fused, given.name):
    if user.opcode in SLICES and place == 0:
      total += user.bytes
    elif (
      user.opcode == 'dynamic-update-slice'
      and place == 0
      or user.opcode == 'tuple'
      or any(mark in user.attributes for mark in MARKS)
    ):
      continue  # written over, handed on, or marked
    elif user.opcode == 'fusion':
      part = reads(module.computations[user.named('calls')[0]], place, module)
      if part is None:
        return None
      total += part
    else:
      return None
  return total


def users(fused: dict[str, Instruction], name: str) -> Iterator[tuple[Instruction, int]]:
  """Who reads a value, and as which operand; through other names of it."""
  for made in fused.values():
    for place, operand in enumerate(made.operands):
      if operand == name:
        if made.opcode == 'bitcast':
          yield from users(fused, made.name)
        else:
          yield made, place


def writes(fused: dict[str, Instruction], end: Instruction, module: Module) -> int | None:
  """Bytes of a result that a fusion writes; None: all."""
  while end.opcode == 'bitcast':
    end = fused[end.operands[0]]
  if end.opcode == 'parameter' or any(mark in end.attributes for mark in MARKS):
    return 0
  if end.opcode == 'dynamic-update-slice':
    return fused[end.operands[1]].bytes
  of, wanted = end, 0
  if end.opcode == 'get-tuple-element':
    of, wanted = fused[end.operands[0]], index(end)
  if of.opcode == 'fusion':
    inner = module.computations[of.named('calls')[0]]
    return writes(inner, (ends(inner) if len(of.shapes) > 1 else [root(inner)])[wanted], module)
  return 0 if of.opcode == 'parameter' else None
