"""The decoder-only model: GPT, LLaMA and their kind."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.embedding import Embedding
from tfm.layers.initializer import Factory
from tfm.layers.linear import Linear
from tfm.mixers.protocol import Context, Memory
from tfm.models.trunk import Trunk
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Float, Int, PyTree


class Decoder(Trunk):
  """tokens → embedding → trunk → logits (Radford et al. 2019, §2.3).

  Attributes:
    vocab: V, the tokens there are; rows: of the embedding table, V rounded up.
    embedding_scale: of what the table gives; see `Embedding`.
    tied: whether the output reads the embedding table backwards.
    embedding_initializer, initializer: of the table, of a separate output.
  """

  vocab: int
  rows: int
  embedding_scale: float
  tied: bool
  embedding_initializer: Factory
  initializer: Factory

  def setup(self):
    super().setup()
    self.embedding = Embedding(self.rows, self.width, self.embedding_initializer, self.dtype, self.embedding_scale)
    if not self.tied:
      self.output = Linear((self.width, self.rows), ('embed', 'vocab'), self.initializer, bias=False, dtype=self.dtype)

  def __call__(
      self, tokens: Int[Array, 'B T'], context: Context, caches: PyTree = None
  ) -> tuple[Float[Array, 'B T V'], PyTree]:
    """Logits of the token after each, and the caches with `tokens` in them (None without)."""
    x, caches = self.features(tokens, context, caches)
    return self.logits(x), caches

  def features(
      self, tokens: Int[Array, 'B T'], context: Context, caches: PyTree = None, memory: Memory | None = None
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """The last hidden states: everything but the logits, so that a loss can make those in pieces.

    `memory` is what an encoder made; see `EncoderDecoder`.
    """
    return self.run(self.embedding(tokens), memory, context, caches)

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

  @nn.nowrap
  def example(self, batch: int, length: int) -> tuple[Any, ...]:
    """Arguments that the model can be traced on: `batch` rows of `length` tokens."""
    tokens = jnp.zeros((batch, length), jnp.int32)
    return tokens, Context.whole(tokens)
