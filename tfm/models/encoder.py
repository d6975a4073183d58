"""The encoder-only model: BERT, RoBERTa and their kind."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.embedding import Embedding
from tfm.mixers.protocol import Context
from tfm.models.language_model import LanguageModel
from tfm.shapes import Array, Float, Int


class Encoder(LanguageModel):
  """tokens [+ token types] → bidirectional trunk → logits of masked tokens, and of classes
  (Devlin et al. 2019, §3).

  Attributes:
    token_types: number of types, BERT's "segments": 0: none, 2: first and second text.
    heads: (name, factory of `Pooled`) of each classification head.
    hidden: the share of tokens whose logits training needs; 0: no vocabulary output.
  """

  token_types: int
  heads: tuple[tuple[str, Callable], ...]
  hidden: float

  def setup(self):
    super().setup()
    if self.token_types:
      self.type_embedding = Embedding(
        self.token_types, self.width, self.embedding_initializer, self.dtype, axis='table'
      )
    self.classifiers = {name: head(name=name) for name, head in self.heads}

  def __call__(
    self,
    tokens: Int[Array, 'B T'],
    context: Context,
    types: Int[Array, 'B T'] | None = None,
    places: Int[Array, 'B P'] | None = None,
  ) -> tuple[dict[str, Array], None]:
    """Logits by name: of each head, and of the 'vocabulary' at `places` (None: everywhere); no caches."""
    x = self.features(tokens, context, types)
    logits = {name: self.classify(name, x, context) for name, _ in self.heads}
    if self.hidden:
      logits['vocabulary'] = self.logits(x if places is None else at(x, places))
    return logits, None

  def features(
    self, tokens: Int[Array, 'B T'], context: Context, types: Int[Array, 'B T'] | None = None
  ) -> Float[Array, 'B T D']:
    """The last hidden states. Without `types` all tokens have type 0."""
    x = self.embedding(tokens)
    if self.token_types:
      x = x + self.type_embedding(jnp.zeros_like(tokens) if types is None else types)
    return self.run(x, None, context, None)[0]

  def classify(self, name: str, x: Float[Array, 'B T D'], context: Context) -> Float[Array, '...']:
    """The logits of a head's classes."""
    return self.classifiers[name](x, context.segments > 0, context.train)

  @nn.nowrap
  def arguments(self, tokens: Int[Array, 'B T'], train: bool = False) -> tuple[Any, ...]:
    """As `Decoder.arguments`."""
    return tokens, Context.contiguous(tokens, train)

  @nn.nowrap
  def example(self, batch: int, length: int) -> tuple[Any, ...]:
    """Arguments that the model can be traced on: `batch` rows of `length` tokens."""
    tokens = jnp.zeros((batch, length), jnp.int32)
    return *self.arguments(tokens), tokens, tokens[:, : max(1, round(self.hidden * length))]


def at(x: Float[Array, 'B T D'], places: Int[Array, 'B P']) -> Float[Array, 'B P D']:
  """The rows of x at some places."""
  return jnp.take_along_axis(x, places[:, :, None], axis=1)
