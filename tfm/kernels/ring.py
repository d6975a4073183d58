"""Exact attention over rows sharded along their length: queries stay, keys and values rotate."""

import dataclasses
import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from tfm import spec
from tfm.errors import suggest
from tfm.kernels import _block_plan, _blockwise
from tfm.kernels._block_plan import BlockGrid, BlockSizes, VisitPlan
from tfm.kernels._flash_steps import FlashSteps
from tfm.kernels.protocol import Kernel
from tfm.parallel import mesh
from tfm.parallel.sequence_parallelism import manual_axes, sequence_shards
from tfm.parallel.sharded_attention import batch_and_head_axes
from tfm.parallel.sharding import shard, shard_by_rules_here, shard_count
from tfm.shapes import Array, Int, PyTree


# Zigzag order is used only if it reduces the work to this fraction: its two exchanges of tokens cost time
# too.
ZIGZAG_THRESHOLD = 0.75

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Ring(BlockSizes, Kernel):
  """Ring attention (Liu, Zaharia & Abbeel 2023): each of n devices holds 1/n of a row.

  In n steps every device adds the keys it holds to the running sums of its queries, block by block as in
  `chunked`, while it sends those keys on to the next device, except in the last. The backward pass sends keys
  and values round once more, and their gradients home. A device holds 1/n of a row at any time, and the
  logits of one block.

  Under a causal mask the device with the first tokens would have little work and the one with the last tokens
  most. Then tokens are reordered during attention (zigzag; Dubey et al. 2024, Llama 3, §3.3.2): of 2n equal
  pieces device i takes the i-th and the i-th from the end. The mask is a predicate on positions, which move
  with their tokens. Zigzag is used if it saves a quarter or more of the slowest devices' blocks.

  The rows are sharded by the mesh axis that the rules give `length`; the compiler handles the other axes.
  If no axis shards rows, this is the kernel of a step.

  With step='flash' each step is a kernel of `flash`, whose outputs are merged by their log-sum-exps: for all
  that it supports but biases. A step of a device reads the keys of one device, so that these alone must fit
  into the memory for vectors of a TPU. Rows and heads are sharded by the rules, in the same `shard_map`.
  With step='auto' it is 'flash' where kernel='auto' prefers that for whole rows and for the rows of a device
  (docs/results/h200.md), with blocks of its own, and 'chunked' elsewhere.

  Attributes:
    queries, keys: tokens of a block.
    step: 'auto', 'chunked' or 'flash'.
    interpret: whether 'flash' runs in interpreter mode on any platform, for tests.

  Raises:
    ValueError: for a block size below 1, an unknown step, and blocks that 'flash' does not support.
  """

  examples = ('ring', 'ring(queries=4, keys=5)')
  names_residuals = True

  step: str = 'auto'
  interpret: bool = False

  def __post_init__(self):
    super().__post_init__()
    if self.step not in (known := ('auto', *STEPS)):
      raise ValueError(f'step={self.step!r} is unknown; {suggest(self.step, known)}')
    if self.step == 'flash' and self.queries != self.keys:
      raise ValueError(f"step='flash' needs blocks of one size, not queries={self.queries}, keys={self.keys}")
    if self.step == 'flash':
      self.flash()  # raises for a block that it does not support
    elif self.interpret:
      raise ValueError(f"interpret=True is for step='flash', not for step={self.step!r}; leave it out")

  def flash(self) -> Kernel:
    """The kernel of a step, with the same blocks."""
    return build_flash(f'flash({self.keys}, {self.interpret})')

  def choose_step(self, q, k, v, inputs) -> tuple['Ring', str | None]:
    """The kernel with the step that it takes for these inputs, and why 'auto' does not take 'flash'."""
    if self.step != 'auto':
      return self, None
    block, platform = build_flash('flash').tokens, mesh.current_platform()
    by_flash = dataclasses.replace(self, step='flash', queries=block, keys=block)
    rows = (q, k, v), one_device_rows(sequence_shards()[1], q, k, v)
    unpreferred = (by_flash.flash().unpreferred_reason(*each, inputs, platform) for each in rows)
    reason = (
      by_flash.unavailable_reason(platform)
      or by_flash.unsupported_reason(q, k, v, inputs)
      or next(filter(None, unpreferred), None)
    )
    return (dataclasses.replace(self, step='chunked') if reason else by_flash), reason

  def unavailable_reason(self, platform):
    return self.flash().unavailable_reason(platform) if self.step == 'flash' else None

  def unsupported_reason(self, q, k, v, inputs):
    if self.step == 'auto':
      return self.choose_step(q, k, v, inputs)[0].unsupported_reason(q, k, v, inputs)
    axes, n = sequence_shards()
    if len(axes) > 1:
      return f'keys go round one mesh axis, and the rules shard rows by {" and ".join(axes)}'
    if q.shape[1] % n or k.shape[1] % n:
      return f'{n} devices share a row, which do not divide {q.shape[1]} queries and {k.shape[1]} keys'
    if inputs.uses_dropout and n > 1:
      return 'its dropout over sharded rows would differ from the dropout of the other kernels'
    if self.step == 'chunked':
      return inputs.not_blockwise_reason()
    if inputs.bias is not None:
      return "step='flash' supports no bias on the logits"
    if min(q.shape[1], k.shape[1]) < 2 * n * self.keys:
      return (
        f'its {n} devices need rows of {2 * n * self.keys} tokens or more, two blocks of {self.keys} each'
      )
    return self.flash().unsupported_reason(*one_device_rows(n, q, k, v), inputs)

  def unpreferred_reason(self, q, k, v, inputs, platform):
    return None if sequence_shards()[0] else 'no mesh axis shards rows'

  def attend(self, q, k, v, inputs):
    if self.step == 'auto':
      kernel, reason = self.choose_step(q, k, v, inputs)
      steps = f'{kernel.step}, not flash: {reason}' if reason else kernel.step
      _log.info(f'kernel: the steps of the ring are {steps}', extra=dict(once=f'ring of {kernel.step}'))
      return kernel.attend(q, k, v, inputs)
    axes, n = sequence_shards()
    if not axes and self.step == 'flash':
      return self.flash().attend(q, k, v, inputs)
    sizes = RingSizes(q.shape[1], k.shape[1], n, self.queries, self.keys)
    plan = RingPlan.best(inputs.mask, inputs.layout, sizes)
    axis = axes[0] if axes else None
    run = functools.partial(attend_on_device, plan, axis, STEPS[self.step](self))
    if axes:
      # The compiler cannot partition the kernels of `flash` over the other axes: these are manual too.
      names, batch, heads = manual_axes(axis), None, None
      if self.step == 'flash':
        names, (batch, heads) = set(jax.sharding.get_abstract_mesh().axis_names), batch_and_head_axes()
        batch = batch if q.shape[0] % shard_count(batch) == 0 else None
      of_q = PartitionSpec(batch, axis, heads)
      of_k = PartitionSpec(batch, axis, None if k.shape[2] == 1 else heads)
      learned = PartitionSpec(), PartitionSpec(), PartitionSpec(heads)
      run = jax.shard_map(
        run,
        in_specs=(PartitionSpec(axis), (of_q, of_k, of_k), learned, PartitionSpec(batch, axis)),
        out_specs=(of_q, PartitionSpec(batch, heads, axis)),
        axis_names=names,
        check_vma=False,
      )
      inputs = inputs.replace(dropout_key=None)  # a key cannot be sharded, and there is no dropout here
    learned = inputs.score, inputs.bias, inputs.sinks
    other_inputs = inputs.replace(score=None, bias=None, sinks=None)
    out, log_sum_exp = run(jnp.arange(n), (q, k, v), learned, other_inputs)
    return shard(out, 'batch', 'length', 'heads', 'kv'), log_sum_exp


def build_flash(text: str) -> Kernel:
  """The kernel of such a spec."""
  return spec.build(text, importlib.import_module('tfm.kernels'), Kernel)


def one_device_rows(devices: int, *arrays: Array) -> list[jax.ShapeDtypeStruct]:
  """The shapes of arrays [B T …] of which each of so many devices has its part of the tokens."""
  return [jax.ShapeDtypeStruct((len(x), x.shape[1] // devices, *x.shape[2:]), x.dtype) for x in arrays]


class RingSizes(NamedTuple):
  """The sizes of a ring.

  Attributes:
    T, S: queries and keys of a row; devices: that share it.
    queries, keys: tokens of a block, at most.
  """

  T: int
  S: int
  devices: int
  queries: int
  keys: int


class RingPlan(NamedTuple):
  """The order of the tokens and the blocks to visit, computed on the host.

  Attributes:
    devices: n; grid: blocks of one device's queries and keys; zigzag: whether tokens are reordered.
    key_visits, query_visits: the visit plan of each device (first axis) for the keys of each device (second).
  """

  devices: int
  grid: BlockGrid
  zigzag: bool
  key_visits: VisitPlan
  query_visits: VisitPlan

  @classmethod
  @functools.lru_cache(maxsize=64)
  def best(cls, mask: Callable, layout: str, sizes: RingSizes) -> 'RingPlan':
    """The plan in zigzag order if that is enough faster, else in row order."""
    straight = cls.in_order(mask, layout, sizes, zigzag=False)
    if sizes.devices == 1 or sizes.T != sizes.S or sizes.T % (2 * sizes.devices):
      return straight
    zigzag = cls.in_order(mask, layout, sizes, zigzag=True)
    return zigzag if zigzag.work < ZIGZAG_THRESHOLD * straight.work else straight

  @classmethod
  def in_order(cls, mask: Callable, layout: str, sizes: RingSizes, zigzag: bool) -> 'RingPlan':
    """The plan for one order of the tokens."""
    T, S, devices, queries, keys = sizes
    pieces = devices * (2 if zigzag else 1)  # a block lies within one piece
    grid = BlockGrid(min(queries, T // pieces), min(keys, S // pieces), T // devices, S // devices)
    q_blocks, k_blocks = (
      np.stack([_split_into_blocks(token_indices(n, devices, i, zigzag), size) for i in range(devices)])
      for n, size in ((T, grid.queries), (S, grid.keys))
    )
    tables = _block_plan.classify_blocks(mask, layout, np.concatenate(q_blocks), np.concatenate(k_blocks))
    some, every = (
      table.reshape(*q_blocks.shape[:2], *k_blocks.shape[:2]).swapaxes(1, 2) for table in tables
    )  # [device of the queries, device of the keys, block of queries, block of keys]
    key_visits, query_visits = (
      [[VisitPlan.from_tables(*pair) for pair in zip(*lines)] for lines in zip(*directed)]
      for directed in ((some, every), (some.swapaxes(2, 3), every.swapaxes(2, 3)))
    )
    return cls(devices, grid, zigzag, _stack_plans(key_visits), _stack_plans(query_visits))

  @property
  def work(self) -> int:
    """Blocks visited by the slowest device of each step, summed over the n steps."""
    visits, device = self.key_visits.starts[..., -1], np.arange(self.devices)
    return sum(int(visits[device, (device - step) % self.devices].max()) for step in range(self.devices))


def token_indices(length: int, devices: int, device: int, zigzag: bool) -> Int[np.ndarray, 'T']:
  """The indices in a row of the tokens that one device holds."""
  if not zigzag:
    return np.arange(length).reshape(devices, -1)[device]
  pieces = np.arange(length).reshape(2 * devices, -1)
  return np.concatenate([pieces[device], pieces[2 * devices - 1 - device]])


def _split_into_blocks(indices: Int[np.ndarray, 'T'], size: int) -> Int[np.ndarray, 'I T']:
  """Indices in whole blocks; the padding of the last block continues the count."""
  padding = -len(indices) % size
  return np.concatenate([indices, indices[-1] + 1 + np.arange(padding)]).reshape(-1, size)


def _stack_plans(plans: list[list[VisitPlan]]) -> VisitPlan:
  """Plans of different lengths, padded to one length and stacked to [device, device, …]."""
  longest = max(1, max(len(plan.blocks) for line in plans for plan in line))

  def pad(x, name):
    return np.pad(x, (0, (longest if name != 'starts' else len(x)) - len(x)))

  return VisitPlan(
    *(
      np.array([[pad(getattr(plan, name), name) for plan in line] for line in plans])
      for name in VisitPlan._fields
    )
  )


# What computes a step: `_blockwise`, or what has the same functions.
STEPS = {'chunked': lambda ring: _blockwise, 'flash': lambda ring: FlashSteps(ring.interpret)}


def attend_on_device(
  plan: RingPlan,
  axis: str | None,
  steps: Any,
  device: Int[Array, '1'],
  qkv: tuple[Array, Array, Array],
  learned: PyTree,
  inputs,
):
  """The attention of one device's queries to all keys.

  Args:
    axis: the mesh axis of the ring; None on one device. device: this device's index along it.
    steps: one of `STEPS`.
    learned: (score, bias, sinks); inputs: the other `AttentionInputs`.
  """
  index, T = device[0], qkv[0].shape[1]

  def reorder(x, back=False):
    return exchange_zigzag(axis, plan.devices, index, x, back) if plan.zigzag else x

  inputs = jax.tree.map(reorder, inputs)
  q, k, v = map(reorder, qkv)
  q, k, v, learned, inputs = _block_plan.pad_to_blocks(
    plan.grid, q, k, v, _block_plan.merge_inputs(inputs, learned)
  )
  out, log_sum_exp = differentiable_attention(plan, axis, steps)(q, k, v, index, learned, inputs)
  out, log_sum_exp = _block_plan.unpad(out.astype(v.dtype), log_sum_exp, T)
  return reorder(out, back=True), reorder(log_sum_exp.swapaxes(1, 2), back=True).swapaxes(1, 2)


def differentiable_attention(plan: RingPlan, axis: str | None, steps: Any) -> Callable:
  """As `chunked.differentiable_attention`, for one device's queries and the keys of all devices."""
  n, grid = plan.devices, plan.grid
  shard_output = shard_by_rules_here('batch', 'length', 'heads', 'kv')

  def send_on(tree):
    if n == 1:
      return tree
    to_next = [(i, (i + 1) % n) for i in range(n)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, axis, to_next), tree)

  def rotate_keys(step, sums, keys):
    """The sums after `step(i, sums, keys) → sums` with the keys of every device, sent n - 1 times."""

    def step_and_send(i, carry):
      sums, keys = carry
      sent = send_on(keys)  # before use, so that communication and computation overlap
      return step(i, sums, keys), sent

    return step(n - 1, *jax.lax.fori_loop(0, n - 1, step_and_send, (sums, keys)))

  def plan_of_step(visits, index, step):
    """The visit plan for the keys that have arrived after `step` steps."""
    return VisitPlan(*(jnp.asarray(x)[index, (index - step) % n] for x in visits))

  def key_data(inputs):
    return inputs.k_positions, inputs.k_segments, inputs.k_prefix

  def with_key_data(inputs, data):
    return inputs.replace(**dict(zip(('k_positions', 'k_segments', 'k_prefix'), data)))

  def forward(q, k, v, index, learned, inputs):
    all_inputs = _block_plan.merge_inputs(inputs, learned)

    def step(i, sums, arrived):
      k, v, data = arrived
      visits = plan_of_step(plan.key_visits, index, i)
      return steps.add_keys(grid, visits, sums, (q, k, v), with_key_data(all_inputs, data))

    sums = rotate_keys(step, steps.initial_sums(grid, q, v, all_inputs), (k, v, key_data(inputs)))
    out, log_sum_exp = steps.finalize(sums, all_inputs)
    out = shard_output(out)
    return (out, log_sum_exp), (q, k, v, index, learned, inputs, out, log_sum_exp)

  def backward(residuals, cotangents):
    q, k, v, index, learned, inputs, out, log_sum_exp = residuals
    all_inputs = _block_plan.merge_inputs(inputs, learned)
    at_output = _blockwise.OutputGradients.of(out, log_sum_exp, cotangents)

    def step(i, sums, arrived):
      (d_local, d_arrived), (k, v, data) = sums, arrived
      plans = tuple(plan_of_step(visits, index, i) for visits in (plan.key_visits, plan.query_visits))
      d_q, *d_keys, d_leaves = steps.input_gradients(
        grid, plans, (q, k, v), with_key_data(all_inputs, data), at_output
      )
      d_local = jax.tree.map(jnp.add, d_local, (d_q, [d.astype(jnp.float32) for d in d_leaves]))
      return d_local, send_on(jax.tree.map(jnp.add, d_arrived, tuple(d_keys)))

    leaves, _ = _blockwise.split_float_leaves((all_inputs.score, all_inputs.bias))
    zeros = jax.tree.map(_blockwise.float32_zeros, ((q, leaves), (k, v)))
    (d_q, d_leaves), d_keys = rotate_keys(step, zeros, (k, v, key_data(inputs)))
    d_qkv = (d.astype(x.dtype) for d, x in zip((d_q, *d_keys), (q, k, v)))
    d_learned = _blockwise.learned_gradients(all_inputs, d_leaves, log_sum_exp, at_output.delta)
    return *d_qkv, None, d_learned, None

  attention = jax.custom_vjp(lambda *args: forward(*args)[0])
  attention.defvjp(forward, backward)
  return attention


def exchange_zigzag(axis: str, n: int, index: Int[Array, ''], x: Array, back: bool = False) -> Array:
  """Moves tokens [B, T, …] between row order and zigzag order.

  Row order gives device i the pieces 2i and 2i + 1 of 2n; zigzag order the i-th and the i-th from the end.
  One exchange moves the even pieces and one the odd pieces.

  Args:
    index: this device's. back: from zigzag order to row order.
  """
  owner = {piece: min(piece, 2 * n - 1 - piece) for piece in range(2 * n)}
  even, odd = ([(i, owner[2 * i + parity]) for i in range(n)] for parity in (0, 1))
  if back:
    even, odd = ([(to, source) for source, to in pairs] for pairs in (even, odd))
  first, second = jnp.split(x, 2, axis=1)
  # In zigzag order a device holds one even piece, which comes first if its own index is even.
  swapped = index % 2 == 1
  if back:
    first, second = jnp.where(swapped, second, first), jnp.where(swapped, first, second)
  first, second = jax.lax.ppermute(first, axis, even), jax.lax.ppermute(second, axis, odd)
  if not back:
    first, second = jnp.where(swapped, second, first), jnp.where(swapped, first, second)
  return jnp.concatenate([first, second], 1)
