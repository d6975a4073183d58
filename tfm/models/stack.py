"""A pattern of blocks, repeated."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.mixers.protocol import ATTENTION, Context, Memory
from tfm.parallel import pipeline
from tfm.parallel.sharding import mesh_axes_of, shard_count
from tfm.shapes import Array, Float, Int, PyTree


# What layers sow in training, and what else.
REPORTS = 'losses', 'metrics'
SOWN = *REPORTS, ATTENTION


class Group(nn.Module):
  """The blocks of one turn of the pattern, one after another."""

  pattern: tuple[Callable, ...]

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D'], memory: Memory | None, context: Context, caches: Any):
    after = {}
    for i, block in enumerate(self.pattern):
      name = f'block_{i}'
      x, after[name] = block(name=name)(x, memory, context, None if caches is None else caches[name])
    return x, None if caches is None else after


class Stack(nn.Module):
  """`layers` blocks that follow `pattern` over and over.

  With `scan`, whole turns of the pattern run in one `nn.scan`: parameters are stacked under
  `layers/block_i/…` with a leading axis 'layers', and compile time does not grow with depth. What is
  left of a last, incomplete turn stands under `rest`. Without `scan` turn i stands under `layers_i`.

  Attributes:
    pattern: block factories; layers: how many blocks in all.
    scan: see above; remat: what the backward pass keeps, one of `REMAT`.
    microbatches, repeats: of a pipeline, where the mesh has stages; see `pipeline.plan_schedule`.
  """

  pattern: tuple[Callable, ...]
  layers: int
  scan: bool
  remat: str
  microbatches: int = 0
  repeats: int = 1

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B T D'], memory: Memory | None, context: Context, caches: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    """What comes out, and the caches with x in them (None without).

    Where the mesh has stages, training and evaluation go through them as through a pipeline; with caches, and
    where weights are told, every device goes through all layers.
    """
    if (
      pipeline.stage_count() > 1
      and caches is None
      and not (self.is_initializing() or self.is_mutable_collection(ATTENTION))
    ):
      return self.pipelined(x, memory, context), None
    after = {}
    for name, blocks, repeats in self.parts():
      group = remat(Group, self.remat, scan=bool(repeats))
      if repeats:
        # A flax scan takes None for "no cache" as an empty tree, so both forms are one call.
        group = nn.scan(
          group,
          variable_axes=dict.fromkeys(('params', *SOWN), 0),
          split_rngs={'params': True, 'dropout': True},
          in_axes=(nn.broadcast, nn.broadcast, 0),
          length=repeats,
          metadata_params={nn.PARTITION_NAME: 'layers'},
        )
      x, after[name] = group(blocks, name=name)(x, memory, context, None if caches is None else caches[name])
    return x, None if caches is None else after

  @nn.nowrap
  def pipelined(
    self, x: Float[Array, 'B T D'], memory: Memory | None, context: Context
  ) -> Float[Array, 'B T D']:
    """What comes out of the stages of the mesh in force. Layers report means over the tokens of all
    microbatches.

    Raises:
      ValueError: if the layers are no whole number of groups for each stage, or for what
        `pipeline.plan_schedule` refuses.
    """
    stages, turns = pipeline.stage_count(), self.layers // len(self.pattern)
    if not self.scan or self.layers % len(self.pattern) or turns % (stages * self.repeats):
      raise ValueError(
        f'{self.layers} layers in turns of {len(self.pattern)}, scan={self.scan}, do not divide over {stages} stages × '
        f'{self.repeats} rounds'
      )
    plan = pipeline.plan_schedule(
      stages, self.repeats, self.microbatches, x.shape[0], shard_count(mesh_axes_of('batch'))
    )
    group = remat(Group, self.remat, scan=True)(self.pattern, parent=None)
    key = self.make_rng('dropout') if self.has_rng('dropout') else None
    told = [name for name in REPORTS if self.is_mutable_collection(name)]

    def layer(params, x, beside, common, number, microbatch):
      memory, context = with_shared(beside, common)
      rngs = (
        {} if key is None else {'dropout': jax.random.fold_in(jax.random.fold_in(key, microbatch), number)}
      )
      (x, _), said = group.apply({'params': params}, x, memory, context, None, rngs=rngs, mutable=told)
      return x, said

    params = self.variables['params']['layers']
    x, said = pipeline.run_pipeline(
      layer, params, x, without_shared(memory, context), plan, REMAT[self.remat]
    )
    tokens = (
      pipeline.split_into_microbatches(context.segments > 0, plan.microbatches)
      .sum((1, 2))
      .astype(jnp.float32)
    )
    share = tokens / jnp.maximum(tokens.sum(), 1)
    for name, values in said.items():
      self.put_variable(
        name, 'layers', jax.tree.map(lambda value: jnp.einsum('m,m...->...', share, value), values)
      )
    return x

  @nn.nowrap
  def init_caches(self, batch: int, length: int) -> PyTree:
    """An empty cache for every block, in the structure of the stack."""

    def group(blocks):
      return {f'block_{i}': block().init_cache(batch, length) for i, block in enumerate(blocks)}

    def stacked(tree, repeats):
      return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (repeats, *x.shape)), tree) if repeats else tree

    return {name: stacked(group(blocks), repeats) for name, blocks, repeats in self.parts()}

  @nn.nowrap
  def reordered(self, caches: PyTree, rows: Int[Array, 'B']) -> PyTree:
    """Caches of which row i is what row `rows[i]` was. What is kept of a memory stays: rows may only
    change places with those that have the same.
    """
    one, two = (jax.eval_shape(lambda n=n: self.init_caches(n, 1)) for n in (1, 2))

    def take(x, a, b):
      axes = [i for i, (m, n) in enumerate(zip(a.shape, b.shape)) if m != n]  # an index of all rows has none
      # All rows are there; the default would look for those that are not, in another pass over the cache.
      return jnp.take(x, rows, axis=axes[0], mode='clip') if axes else x

    return {
      part: {
        name: cache
        | {'mixer': jax.tree.map(take, cache['mixer'], one[part][name]['mixer'], two[part][name]['mixer'])}
        for name, cache in blocks.items()
      }
      for part, blocks in caches.items()
    }

  @nn.nowrap
  def by_layer(self, tree: PyTree) -> list[PyTree]:
    """What each block has of a tree in the structure of the stack, such as its caches: the first block's
    first. None where the tree has nothing of a block.
    """
    found = []
    for name, blocks, repeats in self.parts():
      part = tree.get(name, {})
      for turn in range(repeats or 1):
        of_turn = jax.tree.map(lambda x: x[turn], part) if repeats else part
        found += [of_turn.get(f'block_{i}') for i in range(len(blocks))]
    return found

  @nn.nowrap
  def grown(self, caches: PyTree, batch: int, length: int) -> PyTree:
    """Caches of `batch` rows, with room for `length` tokens instead of fewer; what is kept of a memory stays."""
    wanted = jax.eval_shape(lambda: self.init_caches(batch, length))

    def widen(x, to):
      return x if x.shape == to.shape else jnp.pad(x, [(0, n - m) for m, n in zip(x.shape, to.shape)])

    return {
      part: {
        name: cache | {'mixer': jax.tree.map(widen, cache['mixer'], wanted[part][name]['mixer'])}
        for name, cache in blocks.items()
      }
      for part, blocks in caches.items()
    }

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


def without_shared(memory: Memory | None, context: Context) -> tuple[PyTree, PyTree]:
  """Memory and context apart from what all rows share, and that."""
  contexts = [context] if memory is None else [context, memory.context]
  bare = [context.replace(shared={}) for context in contexts]
  rows = (None, bare[0]) if memory is None else (memory.replace(context=bare[1]), bare[0])
  return rows, [context.shared for context in contexts]


def with_shared(rows: PyTree, shared: PyTree) -> tuple[Memory | None, Context]:
  """Undoes `without_shared`."""
  memory, context = rows
  if memory is not None:
    memory = memory.replace(context=memory.context.replace(shared=shared[1]))
  return memory, context.replace(shared=shared[0])


# name → what the backward pass need not compute again; 'none' keeps everything, 'full' nothing.
REMAT = {
  'none': None,
  'full': jax.checkpoint_policies.nothing_saveable,
  'dots': jax.checkpoint_policies.dots_saveable,
  'dots_with_no_batch_dims': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def remat(module: type, policy: str, scan: bool) -> type:
  """The module class under a remat policy by name."""
  if policy == 'none':
    return module
  return nn.remat(module, policy=REMAT[policy], prevent_cse=not scan)
