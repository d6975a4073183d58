"""The decoder-only model: GPT, LLaMA and their kind."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.embedding import Embedding
from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.mixers.protocol import Context
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int, PyTree


class Decoder(nn.Module):
  """tokens → embedding + position → stack → norm → logits (Radford et al. 2019, §2.3).

  Attributes:
    vocab: V, the tokens there are; rows: of the embedding table, V rounded up.
    width: D.
    positions: factories of every positional scheme in use, each once; `embed` and `share` are theirs.
    reads: what its masks want to know of each document, such as 'prefix'.
    stack, norm: factories; final_norm: whether a norm stands before the logits (post-norm blocks
      end in one of their own).
    tied: whether the output reads the embedding table backwards.
    dropout: rate on the embedding.
    embedding_initializer, initializer, dtype: of the table, of a separate output, of the compute.
  """

  vocab: int
  rows: int
  width: int
  positions: tuple[Callable, ...]
  reads: frozenset[str]
  stack: Callable
  norm: Callable
  final_norm: bool
  tied: bool
  dropout: float
  embedding_initializer: Factory
  initializer: Factory
  dtype: jnp.dtype

  def setup(self):
    self.embedding = Embedding(self.rows, self.width, self.embedding_initializer, self.dtype)
    self.embedders = [position(name=f'position_{i}') for i, position in enumerate(self.positions)]
    self.blocks = self.stack(name='stack')
    if self.final_norm:
      self.norm_out = self.norm(name='norm')
    if not self.tied:
      self.output = Linear((self.width, self.rows), ('embed', 'vocab'), self.initializer, bias=False, dtype=self.dtype)
    self.drop = nn.Dropout(self.dropout)

  def __call__(
      self, tokens: Int[Array, 'B T'], context: Context, caches: PyTree = None
  ) -> tuple[Float[Array, 'B T V'], PyTree]:
    """Logits of the token after each, and the caches with `tokens` in them (None without)."""
    x, caches = self.features(tokens, context, caches)
    return self.logits(x), caches

  def features(
      self, tokens: Int[Array, 'B T'], context: Context, caches: PyTree = None
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """The last hidden states: everything but the logits, so that a loss can make those in pieces."""
    x = self.embedding(tokens)
    for position in self.embedders:
      x = position.embed(x, context.positions)
    context = context.replace(shared={position.identity: position.share() for position in self.embedders})
    x = self.drop(x, deterministic=not context.train)
    x, caches = self.blocks(shard(x, 'batch', 'length', 'embed'), context, caches)
    return self.norm_out(x) if self.final_norm else x, caches

  def logits(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T V']:
    """Float32 logits over the whole vocabulary."""
    y = self.embedding.attend(x) if self.tied else self.output(x).astype(jnp.float32)
    y = shard(y, 'batch', 'length', 'vocab')
    # Rows beyond the vocabulary exist for the mesh's sake; they are no tokens.
    return y[..., :self.vocab]

  @nn.nowrap
  def head(self, params: PyTree) -> PyTree:
    """The part of the parameters that `logits` reads."""
    name = 'embedding' if self.tied else 'output'
    return {name: params[name]}

  @nn.nowrap
  def init_caches(self, batch: int, length: int) -> PyTree:
    """Empty caches for `batch` sequences of up to `length` tokens; touches no parameters."""
    return self.stack().init_caches(batch, length)
