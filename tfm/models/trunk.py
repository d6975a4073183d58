"""The part that all architectures share: from embedded inputs to the last hidden states."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import lecun_normal
from tfm.layers.linear import Linear
from tfm.mixers.protocol import Context, Memory
from tfm.models.block import sow_hidden
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float


class Trunk(nn.Module):
  """embedded tokens → + position → [norm] → dropout → stack → [norm].

  Attributes:
    width: D.
    positions: factories of every positional scheme in use, each once, for `embed` and `compute_table`.
    required_fields: what the masks need of each document, such as 'prefix'.
    stack, norm: factories.
    embedding_norm: whether a norm stands after the embedding (Devlin et al. 2019, released code).
    final_norm: whether one stands after the stack (post-norm blocks end in one of their own).
    dropout: rate on the embedding.
    dtype: of the compute.
    taught_width: of hidden states of a wider model that this one learns from; 0: nothing is projected to it.
  """

  width: int
  positions: tuple[Callable, ...]
  required_fields: frozenset[str]
  stack: Callable
  norm: Callable
  embedding_norm: bool
  final_norm: bool
  dropout: float
  dtype: jnp.dtype
  taught_width: int = dataclasses.field(default=0, kw_only=True)

  def setup(self):
    self.embedders = [position(name=f'position_{i}') for i, position in enumerate(self.positions)]
    if self.embedding_norm:
      self.norm_in = self.norm(name='embedding_norm')
    self.blocks = self.stack(name='stack')
    if self.final_norm:
      self.norm_out = self.norm(name='norm')
    self.drop = nn.Dropout(self.dropout)
    if self.taught_width:
      shape, axes = (self.width, self.taught_width), ('embed', 'mlp')
      self.taught_projection = Linear(shape, axes, lecun_normal(), dtype=self.dtype)

  def run(
    self, x: Float[Array, 'B T D'], memory: Memory | None, context: Context, caches: Any
  ) -> tuple[Float[Array, 'B T D'], Any]:
    """The last hidden states of embedded tokens, and the caches with them in (None without)."""
    for position in self.embedders:
      x = position.embed(x, context.positions)
    context = self.with_position_tables(context)
    if self.embedding_norm:
      x = self.norm_in(x)
    x = self.drop(x, deterministic=not context.train)
    sow_hidden(self, 'embedded', x)
    x, caches = self.blocks(shard(x, 'batch', 'length', 'embed'), memory, context, caches)
    x = self.norm_out(x) if self.final_norm else x
    sow_hidden(self, 'last', x)
    if self.is_initializing() and self.taught_width:
      self.project_to_taught(x)
    return x, caches

  def project_to_taught(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T E']:
    """Hidden states in the width of the model that this one learns from (Jiao et al. 2020, eq. 8)."""
    return self.taught_projection(x)

  def with_position_tables(self, context: Context) -> Context:
    """The context with what positions compute once for all layers."""
    tables = {position.table_key: position.compute_table() for position in self.embedders}
    return context.replace(position_tables=tables)
