"""A pattern of blocks, repeated."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tfm.layers.cache_type import active_cache_type
from tfm.layers.checkpoint_names import BLOCK
from tfm.layers.quantization import INPUT_SIZES, Quantization, active_quantization
from tfm.mixers.protocol import ATTENTION, ATTENTION_LOGITS, Context, Memory
from tfm.models.block import HIDDEN, without_index
from tfm.models.remat import Policy, keep_products
from tfm.models.stream import Stream
from tfm.parallel import pipeline_parallelism
from tfm.parallel.pipeline_parallelism import BLOCK_INPUT
from tfm.parallel.sharding import mesh_axes_of, shard, shard_count
from tfm.shapes import Array, Float, Int, PyTree


# The collections that layers sow in training, and all of them.
REPORTS = 'losses', 'metrics'
SOWN = *REPORTS, ATTENTION, ATTENTION_LOGITS, HIDDEN, INPUT_SIZES


class Group(nn.Module):
  """The blocks of one turn of the pattern, one after another."""

  pattern: tuple[Callable, ...]

  @nn.compact
  def __call__(self, x: PyTree, memory: Memory | None, context: Context, caches: Any):
    after, x = {}, jax.tree.map(lambda x: checkpoint_name(x, BLOCK_INPUT), x)
    for i, block in enumerate(self.pattern):
      name = f'{BLOCK}{i}'
      x, after[name] = block(name=name)(x, memory, context, None if caches is None else caches[name])
    return x, None if caches is None else after


class Stack(nn.Module):
  """`layers` blocks that follow `pattern` over and over.

  With `scan`, whole turns of the pattern run in one `nn.scan`: parameters are stacked under
  `layers/block_i/…` with a leading axis 'layers', and compile time does not grow with depth. The
  blocks of a last, incomplete turn are under `rest`. Without `scan` turn i is under `layers_i`.

  Attributes:
    pattern: block factories; layers: how many blocks in all.
    scan: see above.
    remat: the checkpoint policy (`tfm.models.remat`); None: `keep_products` in a scan over layers, else
      everything is stored.
    microbatches, repeats: of a pipeline, if the mesh has stages; see `pipeline.plan_schedule`.
    streams: how many copies of x the blocks pass on, to be summed after the last one.
    values: heads and channels of the values, if the blocks have value residuals; None: they have none.
    shares_keys: whether some blocks attend to keys and values of others.
    quantization: of the projections; None: none.
    cache_type: of keys and values, one of `CACHE_TYPES`.
  """

  pattern: tuple[Callable, ...]
  layers: int
  scan: bool
  remat: Policy | None
  microbatches: int = 0
  repeats: int = 1
  streams: int = 1
  values: tuple[int, int] | None = None
  shares_keys: bool = False
  quantization: Quantization | None = None
  cache_type: str = 'full'

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B T D'], memory: Memory | None, context: Context, caches: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    """The output, and the caches with x in them (None without).

    If the mesh has stages, training and evaluation run as a pipeline; with caches, or if attention weights
    are sown, every device runs all layers.
    """
    if self.streams > 1:
      B, T, D = x.shape
      x = jnp.broadcast_to(x[:, :, None], (B, T, self.streams, D))
      x = shard(x, 'batch', 'length', None, 'embed')
    with active_quantization(self.quantization):
      if self.values or self.shares_keys:
        keys = self.start_keys(context, caches) if self.shares_keys else None
        x, caches = self.run_blocks(Stream.start(x, self.values, keys), memory, context, caches)
        x = x.x
      else:
        x, caches = self.run_blocks(x, memory, context, caches)
    return x.sum(2) if self.streams > 1 else x, caches

  def run_blocks(self, x: PyTree, memory: Memory | None, context: Context, caches: Any) -> tuple[PyTree, Any]:
    """`__call__` on what the blocks pass on: one or several residual streams, with values or without."""
    if (
      pipeline_parallelism.stage_count() > 1
      and caches is None
      and not (self.is_initializing() or self.is_mutable_collection(ATTENTION))
    ):
      return self.run_pipelined(x, memory, context), None
    after = {}
    for name, blocks, repeats in self.parts():
      group = remat(Group, self.checkpoint_policy(context, repeats), scan=bool(repeats))
      if repeats:
        # A flax scan takes None for "no cache" as an empty tree, so both forms are one call.
        group = nn.scan(
          group,
          variable_axes=dict.fromkeys(('params', *SOWN), 0),
          split_rngs={'params': True, 'dropout': True},
          in_axes=(nn.broadcast, nn.broadcast, 0),
          length=repeats,
          metadata_params={nn.PARTITION_NAME: 'layers'},
          check_constancy_invariants=False,  # nothing is broadcast out; to check traces once more
        )
      x, after[name] = group(blocks, name=name)(x, memory, context, None if caches is None else caches[name])
    return x, None if caches is None else after

  @nn.nowrap
  def checkpoint_policy(self, context: Context, repeats: int) -> Policy | None:
    """That of blocks which a scan repeats."""
    # Without a loop XLA's CPU compiler stores more with it, and a step takes longer.
    return self.remat or (keep_products if repeats > 1 and context.train else None)

  @nn.nowrap
  def start_keys(self, context: Context, caches: Any) -> Any:
    """What the first block replaces by its keys and values: an empty cache of as many tokens."""
    name, blocks, _ = self.parts()[0]
    (B, T), layout = context.positions.shape, context.layout
    if caches is not None:
      T, layout = caches[name][f'{BLOCK}0']['mixer'].positions.shape[-1], 'arbitrary'
    with active_cache_type('full' if caches is None else self.cache_type):
      keys = blocks[0](parent=None).mixer(parent=None).init_cache(B, T)
    return without_index(keys.replace(layout=layout))

  @nn.nowrap
  def run_pipelined(self, x: PyTree, memory: Memory | None, context: Context) -> PyTree:
    """The output of the pipeline over the stages of the current mesh. Layers report means over the tokens of
    all microbatches.

    Raises:
      ValueError: if the layers do not divide into equal groups for each stage, and as
        `pipeline.plan_schedule`.
    """
    stages, turns = pipeline_parallelism.stage_count(), self.layers // len(self.pattern)
    if not self.scan or self.layers % len(self.pattern) or turns % (stages * self.repeats):
      raise ValueError(
        f'{self.layers} layers in turns of {len(self.pattern)}, scan={self.scan}, do not divide over '
        f'{stages} stages × {self.repeats} rounds'
      )
    plan = pipeline_parallelism.plan_schedule(
      stages, self.repeats, self.microbatches, len(context.segments), shard_count(mesh_axes_of('batch'))
    )
    policy = self.checkpoint_policy(context, turns)
    group = remat(Group, policy, scan=True)(self.pattern, parent=None)
    key = self.make_rng('dropout') if self.has_rng('dropout') else None
    sown = [name for name in REPORTS if self.is_mutable_collection(name)]

    def layer(params, x, row_data, shared, number, microbatch):
      memory, context = with_shared(row_data, shared)
      rngs = (
        {} if key is None else {'dropout': jax.random.fold_in(jax.random.fold_in(key, microbatch), number)}
      )
      (x, _), reports = group.apply({'params': params}, x, memory, context, None, rngs=rngs, mutable=sown)
      return x, reports

    params = self.variables['params']['layers']
    rows = without_shared(memory, context)
    x, reports = pipeline_parallelism.run_pipeline(layer, params, x, rows, plan, policy)
    tokens = (
      pipeline_parallelism.split_into_microbatches(context.segments > 0, plan.microbatches)
      .sum((1, 2))
      .astype(jnp.float32)
    )
    share = tokens / jnp.maximum(tokens.sum(), 1)
    for name, values in reports.items():
      self.put_variable(
        name, 'layers', jax.tree.map(lambda value: jnp.einsum('m,m...->...', share, value), values)
      )
    return x

  @nn.nowrap
  def init_caches(self, batch: int, length: int) -> PyTree:
    """An empty cache for every block, in the structure of the stack."""

    def group(blocks):
      return {f'{BLOCK}{i}': block().init_cache(batch, length) for i, block in enumerate(blocks)}

    def stacked(tree, repeats):
      return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (repeats, *x.shape)), tree) if repeats else tree

    with active_cache_type(self.cache_type):
      return {name: stacked(group(blocks), repeats) for name, blocks, repeats in self.parts()}

  @property
  def supports_trees(self) -> bool:
    """Whether alternative continuations of a row may share its caches, apart by `Context.lineage`."""
    return all(block().supports_trees for block in self.pattern)

  @nn.nowrap
  def reorder_caches(self, caches: PyTree, rows: Int[Array, 'B']) -> PyTree:
    """Caches whose row i is row `rows[i]` of the given ones. Keys and values of a memory are not moved: rows
    may only be exchanged with rows that have the same memory.
    """
    one, two = (jax.eval_shape(lambda n=n: self.init_caches(n, 1)) for n in (1, 2))

    def take(x, a, b):
      axes = unequal_axes(a, b)  # an index of all rows has none
      # All indices are valid; the default mode would check them in another pass over the cache.
      return jnp.take(x, rows, axis=axes[0], mode='clip') if axes else x

    return map_own_caches(take, caches, one, two)

  @nn.nowrap
  def insert_caches(self, caches: PyTree, new: PyTree, row: Int[Array, '']) -> PyTree:
    """Caches whose row `row` is row 0 of `new`, caches of as many tokens. What rows share, the next slot to
    fill, is unchanged: `shift_caches` first makes that of `new` the same.
    """
    one, two = (jax.eval_shape(lambda n=n: self.init_caches(n, 1)) for n in (1, 2))

    def insert(x, y, a, b):
      if not (rows := unequal_axes(a, b)):
        return x
      first = jax.lax.slice_in_dim(y, 0, 1, axis=rows[0])
      return jax.lax.dynamic_update_slice_in_dim(x, first, row, rows[0])

    return map_own_caches(insert, caches, new, one, two)

  @nn.nowrap
  def shift_caches(self, caches: PyTree, shift: Int[Array, '']) -> PyTree:
    """Caches with every token, and the next slot to fill, `shift` slots further on (back, if it is negative).
    Slots that leave at one end enter at the other: they must be empty.
    """
    one, two, longer = (jax.eval_shape(lambda s=s: self.init_caches(*s)) for s in ((1, 1), (2, 1), (1, 2)))

    def move(x, a, b, c):
      return jnp.roll(x, shift, unequal_axes(a, c)) if unequal_axes(a, b) else x + shift

    return map_own_caches(move, caches, one, two, longer)

  @nn.nowrap
  def select_slots(self, caches: PyTree, slots: Int[Array, 'B S'], filled: Int[Array, '']) -> PyTree:
    """Caches of the tokens in these slots of each row, in this order; the next one comes to `filled`."""
    one, two, longer = (jax.eval_shape(lambda s=s: self.init_caches(*s)) for s in ((1, 1), (2, 1), (1, 2)))

    def select(x, a, b, c):
      if not (rows := unequal_axes(a, b)):
        return jnp.full_like(x, filled)
      (length,) = unequal_axes(a, c)
      shape = [1] * x.ndim
      shape[rows[0]], shape[length] = slots.shape
      return jnp.take_along_axis(x, slots.reshape(shape), length, mode='clip')

    return map_own_caches(select, caches, one, two, longer)

  @nn.nowrap
  def by_layer(self, tree: PyTree) -> list[PyTree]:
    """The subtree of each block, in order, of a tree in the structure of the stack, such as caches; None if
    the tree has none for a block.
    """
    layers = []
    for name, blocks, repeats in self.parts():
      part = tree.get(name, {})
      for turn in range(repeats or 1):
        of_turn = jax.tree.map(lambda x: x[turn], part) if repeats else part
        layers += [of_turn.get(f'{BLOCK}{i}') for i in range(len(blocks))]
    return layers

  @nn.nowrap
  def select_layers(self, params: PyTree, layers: Sequence[int]) -> PyTree:
    """The parameters of a stack of these layers alone, from those of this one. Each layer must have the same
    place in the pattern in both.
    """
    all_layers, numbers, selected = self.by_layer(params), iter(layers), {}
    for name, blocks, repeats in self.clone(layers=len(layers)).parts():
      turns = [
        {f'{BLOCK}{i}': all_layers[next(numbers)] for i in range(len(blocks))} for _ in range(repeats or 1)
      ]
      selected[name] = jax.tree.map(lambda *x: jnp.stack(x), *turns) if repeats else turns[0]
    return selected

  @nn.nowrap
  def grow_caches(self, caches: PyTree, batch: int, length: int) -> PyTree:
    """Caches of `batch` rows with room for `length` tokens; keys and values of a memory are unchanged."""
    target = jax.eval_shape(lambda: self.init_caches(batch, length))

    def widen(x, to):
      return x if x.shape == to.shape else jnp.pad(x, [(0, n - m) for m, n in zip(x.shape, to.shape)])

    return map_own_caches(widen, caches, target)

  @nn.nowrap
  def parts(self) -> list[tuple[str, tuple[Callable, ...], int]]:
    """(name, blocks, scanned repeats, 0 for none) of each part of the stack."""
    turns, rest = divmod(self.layers, len(self.pattern))
    parts = (
      [('layers', self.pattern, turns)]
      if self.scan
      else [(f'layers_{i}', self.pattern, 0) for i in range(turns)]
    )
    parts = [part for part in parts if turns]
    return parts + ([('rest', self.pattern[:rest], 0)] if rest else [])


def unequal_axes(a: Any, b: Any) -> list[int]:
  """The axes along which the shapes of two arrays differ."""
  return [i for i, (m, n) in enumerate(zip(a.shape, b.shape)) if m != n]


def map_own_caches(f: Callable, caches: PyTree, *others: PyTree) -> PyTree:
  """`jax.tree.map` over all caches but the keys and values of a memory, which are those of `caches`."""

  def of_block(cache, *others):
    return {
      name: value if name == 'cross' else jax.tree.map(f, value, *(other[name] for other in others))
      for name, value in cache.items()
    }

  return {
    part: {name: of_block(cache, *(other[part][name] for other in others)) for name, cache in blocks.items()}
    for part, blocks in caches.items()
  }


def without_shared(memory: Memory | None, context: Context) -> tuple[PyTree, PyTree]:
  """(memory and context without what all rows share, what they share)."""
  contexts = [context] if memory is None else [context, memory.context]
  bare = [context.replace(position_tables={}) for context in contexts]
  rows = (None, bare[0]) if memory is None else (memory.replace(context=bare[1]), bare[0])
  return rows, [context.position_tables for context in contexts]


def with_shared(rows: PyTree, shared: PyTree) -> tuple[Memory | None, Context]:
  """Undoes `without_shared`."""
  memory, context = rows
  if memory is not None:
    memory = memory.replace(context=memory.context.replace(position_tables=shared[1]))
  return memory, context.replace(position_tables=shared[0])


def remat(module: type, policy: Policy | None, scan: bool) -> type:
  """The module class under a checkpoint policy."""
  if policy is None:
    return module
  return nn.remat(module, policy=policy, prevent_cse=not scan)
