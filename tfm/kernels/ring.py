"""Exact attention over rows that a mesh cuts: keys and values go round the devices, queries stay."""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from tfm.kernels import _blockwise
from tfm.kernels._blockwise import Blocks, Plan, Sizes
from tfm.kernels.protocol import Kernel
from tfm.parallel.sequence import manual_axes, sequence_shards
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Int, PyTree


# Tokens change places only for so much less to do: the two exchanges are not free.
WORTH = 0.75


@dataclasses.dataclass(frozen=True)
class Ring(Sizes, Kernel):
  """Ring attention (Liu, Zaharia & Abbeel 2023): each of n devices has T/n queries, keys and values of a row.

  n times the queries add what the keys at hand give, as `chunked` does, block by block with running sums, while those keys
  go on to the next device. The backward pass sends them round once more, and their gradients with them. So a device
  holds 1/n of a row at any time, and scores of one block.

  Under a causal mask the device with the first tokens would have little to do and that with the last all. There tokens
  change places for as long as attention takes (zigzag; Dubey et al. 2024, Llama 3, §3.3.2): of 2 n equal pieces device
  i takes the i-th and the i-th from the end. The mask is asked about positions, which go along. It is done where
  it makes the slowest devices' blocks fewer by a quarter or more.

  The axis is the one by which the rules cut `length`; the others are the compiler's. Where none does, this is
  `chunked`.

  Attributes:
    queries, keys: tokens of a block.

  Raises:
    ValueError: for a block without tokens.
  """

  examples = ('ring', 'ring(queries=4, keys=5)')

  def unsupported_reason(self, q, k, v, inputs):
    axes, n = sequence_shards()
    if len(axes) > 1:
      return f'keys go round one axis of the mesh, and the rules cut rows by {" and ".join(axes)}'
    if q.shape[1] % n or k.shape[1] % n:
      return f'{n} devices share a row, which do not divide {q.shape[1]} queries and {k.shape[1]} keys'
    if inputs.uses_dropout and n > 1:
      return 'it does not draw the dropout that all kernels agree on where a mesh cuts rows'
    return None

  def unpreferred_reason(self, q, k, v, inputs, platform):
    return None if sequence_shards()[0] else 'no axis of the mesh cuts rows'

  def attend(self, q, k, v, inputs):
    axes, n = sequence_shards()
    trip = Trip.of(inputs.mask, inputs.layout, q.shape[1], k.shape[1], n, self.queries, self.keys)
    axis = axes[0] if axes else None
    run = functools.partial(attend, trip, axis)
    if axes:
      rows = PartitionSpec(None, axis)
      run = jax.shard_map(
        run,
        in_specs=(PartitionSpec(axis), rows, rows, rows, PartitionSpec(), rows),
        out_specs=(rows, PartitionSpec(None, None, axis)),
        axis_names=manual_axes(axis),
        check_vma=False,
      )
      inputs = inputs.replace(dropout_key=None)  # there is none to be dropped
    learned, rest = (
      (inputs.score, inputs.bias, inputs.sinks),
      inputs.replace(score=None, bias=None, sinks=None),
    )
    out, log_sum_exp = run(jnp.arange(n), q, k, v, learned, rest)
    return shard(out, 'batch', 'length', 'heads', 'kv'), log_sum_exp


class Trip(NamedTuple):
  """What is known of a journey before it begins.

  Attributes:
    devices: n; blocks: of a device's own queries and keys; zigzag: whether tokens change places.
    rows, columns: of each device (first axis) and each whose keys it has (second), the plan of the visits.
  """

  devices: int
  blocks: Blocks
  zigzag: bool
  rows: Plan
  columns: Plan

  @classmethod
  @functools.lru_cache(maxsize=64)
  def of(cls, mask: Callable, layout: str, T: int, S: int, devices: int, queries: int, keys: int) -> 'Trip':
    straight = cls.along(mask, layout, T, S, devices, queries, keys, False)
    if devices == 1 or T != S or T % (2 * devices):
      return straight
    zigzag = cls.along(mask, layout, T, S, devices, queries, keys, True)
    return zigzag if zigzag.work < WORTH * straight.work else straight

  @classmethod
  def along(
    cls, mask: Callable, layout: str, T: int, S: int, devices: int, queries: int, keys: int, zigzag: bool
  ) -> 'Trip':
    """That of tokens in one order or the other."""
    ways = devices * (2 if zigzag else 1)  # a block lies in one piece
    blocks = Blocks(min(queries, T // ways), min(keys, S // ways), T // devices, S // devices)
    of_queries = [padded(indices(T, devices, i, zigzag), blocks.queries) for i in range(devices)]
    of_keys = [padded(indices(S, devices, i, zigzag), blocks.keys) for i in range(devices)]
    found = [[_blockwise.shown(mask, layout, q, k) for k in of_keys] for q in of_queries]
    rows = stacked([[Plan.of(live, certain) for live, certain in line] for line in found])
    columns = stacked([[Plan.of(live.T, certain.T) for live, certain in line] for line in found])
    return cls(devices, blocks, zigzag, rows, columns)

  @property
  def work(self) -> int:
    """Blocks that are visited while all wait for the slowest, over the whole journey."""
    visits, at = self.rows.starts[..., -1], np.arange(self.devices)
    return sum(int(visits[at, (at - turn) % self.devices].max()) for turn in range(self.devices))


def indices(length: int, devices: int, device: int, zigzag: bool) -> Int[np.ndarray, 'T']:
  """The places in a row of the tokens that a device has."""
  if not zigzag:
    return np.arange(length).reshape(devices, -1)[device]
  sequence_shards = np.arange(length).reshape(2 * devices, -1)
  return np.concatenate([sequence_shards[device], sequence_shards[2 * devices - 1 - device]])


def padded(at: Int[np.ndarray, 'T'], size: int) -> Int[np.ndarray, 'I T']:
  """Indices in whole blocks; what fills the last is counted on."""
  more = -len(at) % size
  return np.concatenate([at, at[-1] + 1 + np.arange(more)]).reshape(-1, size)


def stacked(plans: list[list[Plan]]) -> Plan:
  """Plans of different lengths in arrays of one."""
  longest = max(1, max(len(plan.others) for line in plans for plan in line))
  return Plan(
    *(
      np.array(
        [[np.pad(x, (0, (longest if name != 'starts' else len(x)) - len(x))) for x in line] for line in grid]
      )
      for name, grid in (
        (name, [[getattr(plan, name) for plan in line] for line in plans]) for name in Plan._fields
      )
    )
  )


def attend(
  trip: Trip, axis: str | None, device: Int[Array, '1'], q: Array, k: Array, v: Array, learned: PyTree, inputs
):
  """What one device does: its own queries against all keys. `device` is its number; the others' part is asked for by
  collectives along `axis`, None for one device alone.
  """
  me, T, H = device[0], q.shape[1], q.shape[2]
  swap = functools.partial(exchange, axis, trip.devices, me) if trip.zigzag else lambda x, back=False: x
  inputs = jax.tree.map(swap, inputs)
  q, k, v, learned, inputs = _blockwise.laid_out(
    trip.blocks, *map(swap, (q, k, v)), inputs.replace(score=learned[0], bias=learned[1], sinks=learned[2])
  )
  out, log_sum_exp = attention(trip, axis)(q, k, v, me, learned, inputs)
  out, log_sum_exp = _blockwise.taken_back(out.astype(v.dtype), log_sum_exp, T, H)
  return swap(out, back=True), swap(log_sum_exp.swapaxes(1, 2), back=True).swapaxes(1, 2)


def attention(trip: Trip, axis: str | None) -> Callable:
  """As that of `chunked`, of one device's queries and all devices' keys, with a backward pass of its own."""
  n, blocks = trip.devices, trip.blocks

  def onward(tree):
    return (
      tree
      if n == 1
      else jax.tree.map(lambda x: jax.lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)]), tree)
    )

  def at(plan, me, turn):
    """The plan for the keys that have come after some turns."""
    return Plan(*(jnp.asarray(x)[me, (me - turn) % n] for x in plan))

  def keys_of(inputs):
    return inputs.k_positions, inputs.k_segments, inputs.k_prefix

  def with_keys(inputs, keys):
    return inputs.replace(**dict(zip(('k_positions', 'k_segments', 'k_prefix'), keys)))

  def forward(q, k, v, me, learned, inputs):
    whole = _blockwise.complete(inputs, learned)

    def turn(i, carry):
      sums, travelling = carry
      k, v, keys = travelling
      # Sent on before they are used, so that the journey and the work go on at once.
      ahead = onward(travelling)
      return _blockwise.add(blocks, at(trip.rows, me, i), sums, q, k, v, with_keys(whole, keys)), ahead

    carry = _blockwise.start(blocks, q, v, whole), (k, v, keys_of(inputs))
    sums, _ = jax.lax.fori_loop(0, n, turn, carry)
    out, log_sum_exp = _blockwise.finish(sums, whole)
    return (out, log_sum_exp), (q, k, v, me, learned, inputs, out, log_sum_exp)

  def backward(kept, cotangents):
    q, k, v, me, learned, inputs, out, log_sum_exp = kept
    whole, d_out = _blockwise.complete(inputs, learned), cotangents[0]
    inner = _blockwise.inner(out, *cotangents)

    def turn(i, carry):
      d_own, d_travelling, travelling = carry
      k, v, keys = travelling
      ahead = onward(travelling)
      d_q, *d_keys, d_leaves = _blockwise.gradients(
        blocks, at(trip.columns, me, i), q, k, v, with_keys(whole, keys), log_sum_exp, inner, d_out
      )
      d_own = jax.tree.map(jnp.add, d_own, (d_q, [d.astype(jnp.float32) for d in d_leaves]))
      return d_own, onward(jax.tree.map(jnp.add, d_travelling, tuple(d_keys))), ahead

    leaves, _ = _blockwise.floating((whole.score, whole.bias))
    start = jax.tree.map(_blockwise.zeros, ((q, leaves), (k, v)))
    (d_q, d_leaves), d_keys, _ = jax.lax.fori_loop(0, n, turn, (*start, (k, v, keys_of(inputs))))
    d_arrays = (d.astype(x.dtype) for d, x in zip((d_q, *d_keys), (q, k, v)))
    return *d_arrays, None, _blockwise.learned_gradients(whole, d_leaves, log_sum_exp, inner), None

  run = jax.custom_vjp(lambda *args: forward(*args)[0])
  run.defvjp(forward, backward)
  return run


def exchange(axis: str, n: int, me: Int[Array, ''], x: Array, back: bool = False) -> Array:
  """The tokens [B, T, …] of a device, of 2 n pieces the 2 i-th and the one after, for the i-th and the i-th from the end;
  or `back`. Half of them go each way at once."""
  home = {piece: min(piece, 2 * n - 1 - piece) for piece in range(2 * n)}
  even, odd = ([(i, home[2 * i + parity]) for i in range(n)] for parity in (0, 1))
  if back:
    even, odd = ([(to, of) for of, to in places] for places in (even, odd))
  first, second = jnp.split(x, 2, axis=1)
  # A device has one piece of an even number, the first if its own number is even.
  turned = me % 2 == 1
  if back:
    first, second = jnp.where(turned, second, first), jnp.where(turned, first, second)
  first, second = jax.lax.ppermute(first, axis, even), jax.lax.ppermute(second, axis, odd)
  if not back:
    first, second = jnp.where(turned, second, first), jnp.where(turned, first, second)
  return jnp.concatenate([first, second], 1)
