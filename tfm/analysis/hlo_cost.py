"""FLOPs and memory traffic of one device in a compiled module, read from its text."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from tfm.analysis.hlo import HOST_MEMORY, Instruction, Module, Shape, root, tuple_index


# Opcodes without memory traffic of their own: aliases, second halves of asynchronous pairs, and calls of
# other computations.
NO_TRAFFIC_OPCODES = (
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
SLICING_OPCODES = ('dynamic-slice', 'slice', 'gather')
# What moves arrays from one memory to another; on GPUs also within fusions.
MOVING_OPCODES = ('copy', 'slice', 'dynamic-slice', 'dynamic-update-slice')
# Markers of the TPU compiler's custom calls without memory traffic.
NO_TRAFFIC_MARKERS = (
  'AllocateBuffer',
  'AsyncCollective',
  'ConcatBitcast',
  'AssumeGatherIndicesInBound',
  'Sharding',
)


@dataclasses.dataclass(frozen=True)
class DeviceCost:
  """The cost of one execution on one device.

  Attributes:
    flops: of matrix products and convolutions, counting multiply and add; without attention kernels (Pallas,
      cuDNN), whose FLOPs are not in the text.
    bytes: a lower bound on main-memory traffic: each operand of a fusion is counted once, slices of it by
      their own size, and on-chip memory not at all.
    to_host, from_host: that move to the memory of the host, and back.

  What stands in a scope `useful:rows:all`, as the products of a mixture of experts, counts for `rows` of its
  rows, where it skips the others. Every expert is taken to have its even share.
  """

  flops: int
  bytes: int
  to_host: int = 0
  from_host: int = 0


def count_cost(module: Module) -> DeviceCost:
  """The cost of a module; a loop counts once per iteration, or once if its trip count is unknown."""
  flops = bytes_accessed_total = to_host = from_host = 0
  for execution in module.executed():
    computation, instruction = module.computations[execution.computation], execution.instruction
    times = execution.times * useful_share(instruction)
    if instruction.opcode in FLOP_COUNTERS:
      flops += times * FLOP_COUNTERS[instruction.opcode](
        instruction, [shape for name in instruction.operands for shape in computation[name].shapes[:1]]
      )
    if execution.inside is None:
      bytes_accessed_total += times * bytes_accessed(instruction, computation, module)
    if instruction.opcode.removesuffix('-start') in MOVING_OPCODES:
      moved = bytes_moved_to_host(instruction, computation)
      to_host += times * max(moved, 0)
      from_host += times * max(-moved, 0)
  return DeviceCost(*map(round, (flops, bytes_accessed_total, to_host, from_host)))


def useful_share(instruction: Instruction) -> float:
  """The share of its rows that is not filling, by the scopes `useful:rows:all` that it stands in, if it skips
  filling: a ragged product, or what a loop does under a condition; else 1.
  """
  if 'useful:' not in instruction.attributes:
    return 1
  scopes = re.search(r'op_name="([^"]*)"', instruction.attributes)[1]
  if not re.search(r'useful:.*/(ragged_dot|while/.*/cond/)', scopes):
    return 1
  return math.prod(int(rows) / int(of) for rows, of in re.findall(r'useful:(\d+):(\d+)', scopes))


def dot_flops(instruction: Instruction, operands: list[Shape]) -> int:
  """2 · elements of the result · contracted sizes."""
  contracting_dims = re.search(r'lhs_contracting_dims=\{([\d,]*)\}', instruction.attributes)
  sizes = (
    [operands[0].dims[int(axis)] for axis in contracting_dims[1].split(',') if axis]
    if contracting_dims
    else []
  )
  return 2 * math.prod(instruction.shapes[0].dims) * math.prod(sizes)


def convolution_flops(instruction: Instruction, operands: list[Shape]) -> int:
  """2 · batch · input features · output features · overlapping pairs of output and kernel positions.

  The TPU compiler converts all matrix products to convolutions, with heads and batches as spatial axes, whose
  dilation and padding are such that most pairs do not overlap.
  """
  lhs, rhs, out = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', instruction.attributes).groups()
  sizes = [
    dict(zip(labels, shape.dims))
    for labels, shape in ((lhs, operands[0]), (rhs, operands[1]), (out, instruction.shapes[0]))
  ]
  window = {
    name: text.split('x')
    for name, text in re.findall(
      r'(\w+)=([\d_x\-]+)', (re.search(r'window=\{([^}]*)\}', instruction.attributes) or [''] * 2)[1]
    )
  }

  def window_value(name, default, axis):
    return window[name][axis] if name in window else default

  total = sizes[2]['b'] * sizes[2]['f'] * sizes[1]['i']
  for axis in range(sum(label.isdigit() for label in lhs)):
    label = str(axis)
    stride, lhs_dilation, rhs_dilation = (
      int(window_value(name, 1, axis)) for name in ('stride', 'lhs_dilate', 'rhs_dilate')
    )
    padding_low = int(str(window_value('pad', '0_0', axis)).split('_')[0])
    strides = Strides(stride, padding_low, lhs_dilation, rhs_dilation)
    total *= overlapping_pairs(sizes[0][label], sizes[1][label], sizes[2][label], strides)
  return 2 * total


class Strides(NamedTuple):
  """How a convolution's kernel moves along one axis: its stride, the padding before the input, and the
  dilations of input and kernel.
  """

  stride: int = 1
  padding_low: int = 0
  lhs_dilation: int = 1
  rhs_dilation: int = 1


@functools.cache
def overlapping_pairs(inputs: int, kernel: int, outputs: int, strides: Strides) -> int:
  """Pairs of an output position and a kernel position that read an input element, along one axis.

  Args:
    inputs, kernel, outputs: the sizes along the axis.
  """
  stride, padding_low, lhs_dilation, rhs_dilation = strides
  return sum(
    0 <= at < inputs * lhs_dilation and at % lhs_dilation == 0
    for o in range(outputs)
    for at in range(o * stride - padding_low, o * stride - padding_low + kernel * rhs_dilation, rhs_dilation)
  )


def library_call_flops(instruction: Instruction, operands: list[Shape]) -> int:
  """FLOPs of a cuBLAS call, which states its dimensions, and of a TPU's ragged product; 0 for other custom
  calls.
  """
  if 'ragged_dot_tiling' in instruction.attributes:
    kernels = operands[-1].dims  # [groups, contracted, columns]
    return 2 * math.prod(instruction.shapes[0].dims) * kernels[1]
  if '__cublas' not in instruction.attributes:
    return 0
  contracting_dims = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
  axes = [int(axis) for axis in re.findall(r'\d+', contracting_dims[1])] if contracting_dims else []
  return 2 * math.prod(instruction.shapes[0].dims) * math.prod(operands[0].dims[axis] for axis in axes)


FLOP_COUNTERS = {'dot': dot_flops, 'convolution': convolution_flops, 'custom-call': library_call_flops}


def bytes_accessed(instruction: Instruction, computation: dict[str, Instruction], module: Module) -> int:
  """Memory traffic of an instruction outside of fusions."""
  if (
    instruction.opcode in NO_TRAFFIC_OPCODES
    or instruction.opcode.endswith('-done')
    or any(marker in instruction.attributes for marker in NO_TRAFFIC_MARKERS)
  ):
    return 0
  operands = [computation[name] for name in instruction.operands]
  results, opcode = results_of(instruction), instruction.opcode.removesuffix('-start')
  if opcode == 'fusion':
    fused = module.computations[instruction.computations_in('calls')[0]]
    read = sum(
      smaller(shape.bytes, bytes_read(fused, i, module))
      for i, one in enumerate(operands)
      for shape in in_main_memory(one.shapes)
    )
    outputs = fusion_outputs(fused) if len(instruction.shapes) > 1 else [root(fused)]
    return read + sum(
      smaller(shape.bytes, bytes_written(fused, end, module))
      for shape, end in zip(results, outputs)
      if shape.memory == 0
    )
  written = sum(shape.bytes for shape in in_main_memory(results))
  if opcode in SLICING_OPCODES:
    return written + (sum(shape.bytes for shape in results) if in_main_memory(operands[0].shapes) else 0)
  if opcode == 'dynamic-update-slice':
    return sum(operands[1].bytes for one in (operands[1].shapes, results) if in_main_memory(one))
  return written + sum(shape.bytes for one in operands for shape in in_main_memory(one.shapes))


def results_of(instruction: Instruction) -> tuple[Shape, ...]:
  """The results of an instruction; an asynchronous start has the shapes (operands, results, flags), with at
  most as many results as operands.
  """
  if not instruction.opcode.endswith('-start'):
    return instruction.shapes
  if instruction.opcode == 'copy-start':
    return instruction.shapes[:1]
  n = len(instruction.operands)
  return instruction.shapes[n : 2 * n] or instruction.shapes


def bytes_moved_to_host(instruction: Instruction, computation: dict[str, Instruction]) -> int:
  """Bytes that a copy or slice moves from the device to host memory, negative for back; 0 within a memory."""
  is_update = instruction.opcode.startswith('dynamic-update-slice')
  source = computation[instruction.operands[is_update]].shapes[0]
  destination = results_of(instruction)[0]
  return (source if is_update else destination).bytes * (
    (destination.memory == HOST_MEMORY) - (source.memory == HOST_MEMORY)
  )


def in_main_memory(shapes: tuple[Shape, ...]) -> list[Shape]:
  """The shapes in main memory."""
  return [shape for shape in shapes if shape.memory == 0]


def smaller(full_size: int, partial_size: int | None) -> int:
  """The smaller of the full size and the partial size, if that is known."""
  return full_size if partial_size is None else min(full_size, partial_size)


def fusion_outputs(fused: dict[str, Instruction]) -> list[Instruction]:
  """The instruction that produces each result of a fusion."""
  end = root(fused)
  return [fused[name] for name in end.operands] if end.opcode == 'tuple' else [end] * len(end.shapes)


def bytes_read(fused: dict[str, Instruction], parameter: int, module: Module) -> int | None:
  """Bytes of a parameter that a fusion reads; None if all."""
  [operands] = [
    instruction
    for instruction in fused.values()
    if instruction.opcode == 'parameter' and int(instruction.arguments) == parameter
  ]
  total = 0
  for user, operand_index in find_users(fused, operands.name):
    if user.opcode in SLICING_OPCODES and operand_index == 0:
      total += user.bytes
    elif (
      user.opcode == 'dynamic-update-slice'
      and operand_index == 0
      or user.opcode == 'tuple'
      or any(marker in user.attributes for marker in NO_TRAFFIC_MARKERS)
    ):
      continue  # overwritten, passed on, or without traffic
    elif user.opcode == 'fusion':
      partial_size = bytes_read(module.computations[user.computations_in('calls')[0]], operand_index, module)
      if partial_size is None:
        return None
      total += partial_size
    else:
      return None
  return total


def find_users(fused: dict[str, Instruction], name: str) -> Iterator[tuple[Instruction, int]]:
  """(instruction, operand index) of every use of a value, through bitcasts."""
  for instruction in fused.values():
    for operand_index, operand in enumerate(instruction.operands):
      if operand == name:
        if instruction.opcode == 'bitcast':
          yield from find_users(fused, instruction.name)
        else:
          yield instruction, operand_index


def bytes_written(fused: dict[str, Instruction], end: Instruction, module: Module) -> int | None:
  """Bytes of a result that a fusion writes; None if all."""
  while end.opcode == 'bitcast':
    end = fused[end.operands[0]]
  if end.opcode == 'parameter' or any(marker in end.attributes for marker in NO_TRAFFIC_MARKERS):
    return 0
  if end.opcode == 'dynamic-update-slice':
    return fused[end.operands[1]].bytes
  source, element = end, 0
  if end.opcode == 'get-tuple-element':
    source, element = fused[end.operands[0]], tuple_index(end)
  if source.opcode == 'fusion':
    inner = module.computations[source.computations_in('calls')[0]]
    return bytes_written(
      inner, (fusion_outputs(inner) if len(source.shapes) > 1 else [root(inner)])[element], module
    )
  return 0 if source.opcode == 'parameter' else None
