"""Exact attention over rows sharded along their length: queries stay, keys and values rotate."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from tfm.kernels import _block_plan, _blockwise
from tfm.kernels._block_plan import BlockGrid, BlockSizes, VisitPlan
from tfm.kernels.protocol import Kernel
from tfm.parallel.sequence_parallelism import manual_axes, sequence_shards
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Int, PyTree


# Zigzag order is used only if it reduces the work to this fraction: its two exchanges of tokens cost time
# too.
ZIGZAG_THRESHOLD = 0.75


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
  If no axis shards rows, this is `chunked`.

  Attributes:
    queries, keys: tokens of a block.

  Raises:
    ValueError: for a block size below 1.
  """

  examples = ('ring', 'ring(queries=4, keys=5)')
  names_residuals = True

  def unsupported_reason(self, q, k, v, inputs):
    axes, n = sequence_shards()
    if len(axes) > 1:
      return f'keys go round one mesh axis, and the rules shard rows by {" and ".join(axes)}'
    if q.shape[1] % n or k.shape[1] % n:
      return f'{n} devices share a row, which do not divide {q.shape[1]} queries and {k.shape[1]} keys'
    if inputs.uses_dropout and n > 1:
      return 'its dropout over sharded rows would differ from the dropout of the other kernels'
    return inputs.not_blockwise_reason()

  def unpreferred_reason(self, q, k, v, inputs, platform):
    return None if sequence_shards()[0] else 'no mesh axis shards rows'

  def attend(self, q, k, v, inputs):
    axes, n = sequence_shards()
    sizes = RingSizes(q.shape[1], k.shape[1], n, self.queries, self.keys)
    plan = RingPlan.best(inputs.mask, inputs.layout, sizes)
    axis = axes[0] if axes else None
    run = functools.partial(attend_on_device, plan, axis)
    if axes:
      rows = PartitionSpec(None, axis)
      run = jax.shard_map(
        run,
        in_specs=(PartitionSpec(axis), (rows, rows, rows), PartitionSpec(), rows),
        out_specs=(rows, PartitionSpec(None, None, axis)),
        axis_names=manual_axes(axis),
        check_vma=False,
      )
      inputs = inputs.replace(dropout_key=None)  # a key cannot be sharded, and there is no dropout here
    learned = inputs.score, inputs.bias, inputs.sinks
    other_inputs = inputs.replace(score=None, bias=None, sinks=None)
    out, log_sum_exp = run(jnp.arange(n), (q, k, v), learned, other_inputs)
    return shard(out, 'batch', 'length', 'heads', 'kv'), log_sum_exp


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


def attend_on_device(
  plan: RingPlan,
  axis: str | None,
  device: Int[Array, '1'],
  qkv: tuple[Array, Array, Array],
  learned: PyTree,
  inputs,
):
  """The attention of one device's queries to all keys.

  Args:
    axis: the mesh axis of the ring; None on one device. device: this device's index along it.
    learned: (score, bias, sinks); inputs: the other `AttentionInputs`.
  """
  index, (T, H) = device[0], qkv[0].shape[1:3]

  def reorder(x, back=False):
    return exchange_zigzag(axis, plan.devices, index, x, back) if plan.zigzag else x

  inputs = jax.tree.map(reorder, inputs)
  q, k, v = map(reorder, qkv)
  q, k, v, learned, inputs = _block_plan.pad_to_blocks(
    plan.grid, q, k, v, _block_plan.merge_inputs(inputs, learned)
  )
  out, log_sum_exp = differentiable_attention(plan, axis)(q, k, v, index, learned, inputs)
  out, log_sum_exp = _block_plan.unpad(out.astype(v.dtype), log_sum_exp, T, H)
  return reorder(out, back=True), reorder(log_sum_exp.swapaxes(1, 2), back=True).swapaxes(1, 2)


def differentiable_attention(plan: RingPlan, axis: str | None) -> Callable:
  """As `chunked.differentiable_attention`, for one device's queries and the keys of all devices."""
  n, grid = plan.devices, plan.grid

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
      return _blockwise.add_keys(grid, visits, sums, (q, k, v), with_key_data(all_inputs, data))

    sums = rotate_keys(step, _blockwise.initial_sums(grid, q, v, all_inputs), (k, v, key_data(inputs)))
    out, log_sum_exp = _blockwise.finalize(sums, all_inputs)
    return (out, log_sum_exp), (q, k, v, index, learned, inputs, out, log_sum_exp)

  def backward(residuals, cotangents):
    q, k, v, index, learned, inputs, out, log_sum_exp = residuals
    all_inputs, d_out = _block_plan.merge_inputs(inputs, learned), cotangents[0]
    delta = _blockwise.compute_delta(out, *cotangents)
    at_output = _blockwise.OutputGradients(log_sum_exp, delta, d_out)

    def step(i, sums, arrived):
      (d_local, d_arrived), (k, v, data) = sums, arrived
      visits = plan_of_step(plan.query_visits, index, i)
      d_q, *d_keys, d_leaves = _blockwise.input_gradients(
        grid, visits, (q, k, v), with_key_data(all_inputs, data), at_output
      )
      d_local = jax.tree.map(jnp.add, d_local, (d_q, [d.astype(jnp.float32) for d in d_leaves]))
      return d_local, send_on(jax.tree.map(jnp.add, d_arrived, tuple(d_keys)))

    leaves, _ = _blockwise.split_float_leaves((all_inputs.score, all_inputs.bias))
    zeros = jax.tree.map(_blockwise.float32_zeros, ((q, leaves), (k, v)))
    (d_q, d_leaves), d_keys = rotate_keys(step, zeros, (k, v, key_data(inputs)))
    d_qkv = (d.astype(x.dtype) for d, x in zip((d_q, *d_keys), (q, k, v)))
    return *d_qkv, None, _blockwise.learned_gradients(all_inputs, d_leaves, log_sum_exp, delta), None

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
