"""The encoder-decoder: the first Transformer, T5, BART, Marian."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.mixers.protocol import Context, Memory
from tfm.models.decoder import Decoder
from tfm.models.trunk import Trunk
from tfm.shapes import Array, Float, Int, PyTree


class SourceEncoder(Trunk):
  """embedded tokens → trunk: an encoder without an output layer."""

  def __call__(self, x: Float[Array, 'B S D'], context: Context) -> Memory:
    return Memory(self.run(x, None, context, None)[0], context)


class EncoderDecoder(Decoder):
  """source → encoder → memory; tokens, memory → decoder → logits (Vaswani et al. 2017, §3.1).

  It is a decoder whose blocks attend to a memory. Source and target share one embedding table, which is
  also the output's if `tie_embeddings` (§3.4), unless the source has a separate vocabulary.

  Attributes:
    encoder: factory of a `SourceEncoder`.
    source_vocab, source_rows: of a separate table for the source; 0, 0: it shares the target's.
  """

  encoder: Callable
  source_vocab: int
  source_rows: int

  def setup(self):
    super().setup()
    self.encoding = self.encoder(name='encoder')
    if self.source_rows:
      self.source_embedding = self.vocabulary(self.source_rows)

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    context: Context,
    caches: PyTree = None,
    source: Int[Array, 'B S'] | None = None,
    source_context: Context | None = None,
  ) -> tuple[Float[Array, 'B T V'], PyTree]:
    """Logits of the token after each; `source` is encoded, unless the caches hold it."""
    memory = None if source is None else self.encode(source, source_context)
    x, caches = self.features(tokens, context, caches, memory)
    return self.logits(x), caches

  def encode(self, source: Int[Array, 'B S'], context: Context) -> Memory:
    """The memory that the decoder attends to. A source belongs to the target in the same row and segment."""
    embedding = self.source_embedding if self.source_rows else self.embedding
    return self.encoding(embedding(source), context)

  @nn.nowrap
  def arguments(
    self, tokens: Int[Array, 'B T'], source: Int[Array, 'B S'], train: bool = False
  ) -> tuple[Any, ...]:
    """As `Decoder.arguments`, for targets and their sources."""
    return *super().arguments(tokens, train), None, source, Context.contiguous(source, train)

  @nn.nowrap
  def example(self, batch, length):
    tokens = jnp.zeros((batch, length), jnp.int32)
    return self.arguments(tokens, tokens)
