"""The decoder-only model: GPT, LLaMA and their kind."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.mixers.protocol import Context, Memory
from tfm.models.language_model import LanguageModel
from tfm.shapes import Array, Float, Int, PyTree


class Decoder(LanguageModel):
  """tokens → logits of the token after each, with caches for decoding (Radford et al. 2019, §2.3).

  Attributes:
    further: factories of `FuturePrediction`, which predict further tokens in training; (): none.
    reconstruction: a factory of `Reconstruction`, which reads a text from the state of its last token;
      None: there is none.
  """

  further: tuple[Callable, ...]
  reconstruction: Callable | None = dataclasses.field(default=None, kw_only=True)

  def setup(self):
    super().setup()
    self.predictions = [make(name=f'further_{i}') for i, make in enumerate(self.further)]
    if self.reconstruction:
      self.reader = self.reconstruction(name='reconstruction')

  def __call__(
    self, tokens: Int[Array, 'B T'], context: Context, caches: PyTree = None
  ) -> tuple[Float[Array, 'B T V'], PyTree]:
    """Logits of the token after each, and the caches with `tokens` in them (None without)."""
    x, caches = self.features(tokens, context, caches)
    if self.is_initializing():
      self.further_features(x, tokens, context)
      if self.reconstruction:
        self.reconstruct(x, context)
    return self.logits(x), caches

  def features(
    self, tokens: Int[Array, 'B T'], context: Context, caches: PyTree = None, memory: Memory | None = None
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """The last hidden states: everything but the logits, so that a loss can compute those in chunks.

    `memory` is the output of an encoder; see `EncoderDecoder`.
    """
    return self.run(self.embedding(tokens), memory, context, caches)

  def further_features(
    self, x: Float[Array, 'B T D'], tokens: Int[Array, 'B T'], context: Context
  ) -> list[Float[Array, 'B T D']]:
    """The hidden states that the token after the next one is predicted from, the one after that, …

    `x` are the `features` of the tokens. At the end of a row its first tokens stand for those that follow.
    """
    features, context = [], self.with_position_tables(context)
    for i, predict in enumerate(self.predictions, 1):
      x, y = predict(x, self.embedding(jnp.roll(tokens, -i, 1)), context)
      features.append(y)
    return features

  def reconstruct(self, x: Float[Array, 'B T D'], context: Context) -> Float[Array, 'B T D']:
    """The hidden states that the target of each token is predicted from, all of them from the last `features`
    x of a row.
    """
    return self.reader(x, context)

  def all_logits(
    self, tokens: Int[Array, 'B T'], context: Context
  ) -> tuple[list[Float[Array, 'B T V']], PyTree]:
    """The logits of the next token and of each further one, or those of the reconstruction: all that training
    predicts; and no caches.
    """
    x, caches = self.features(tokens, context)
    if self.reconstruction:
      return [self.logits(self.reconstruct(x, context))], caches
    return [self.logits(x) for x in (x, *self.further_features(x, tokens, context))], caches

  @nn.nowrap
  def init_caches(self, batch: int, length: int) -> PyTree:
    """Empty caches for `batch` sequences of up to `length` tokens; touches no parameters."""
    return self.stack().init_caches(batch, length)

  @nn.nowrap
  def arguments(self, tokens: Int[Array, 'B T'], train: bool = False) -> tuple[Any, ...]:
    """The arguments of the model for rows of one document each; `train`: with dropout."""
    return tokens, Context.contiguous(tokens, train)

  @nn.nowrap
  def example(self, batch: int, length: int) -> tuple[Any, ...]:
    """Arguments that the model can be traced on: `batch` rows of `length` tokens."""
    return self.arguments(jnp.zeros((batch, length), jnp.int32))
