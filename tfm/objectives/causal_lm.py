"""Next-token prediction."""

import dataclasses
from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.chunked_cross_entropy import split_into_chunks
from tfm.mixers.protocol import Context
from tfm.objectives.protocol import Predicted, Prediction
from tfm.shapes import Array, Float, Int, PyTree


@dataclasses.dataclass(frozen=True)
class CausalLM(Prediction):
  """Σ over tokens of -log p(target | previous tokens) (Radford et al. 2018, eq. 1)."""

  supports_recurrence = True

  def predict(self, model, params, batch, key, dropout, sow=()):
    prefix, weights = self.prefix_and_weights(batch, key)
    train = dropout is not None
    context = Context(batch['positions'], batch['segments'], prefix, train=train, layout=self.layout)
    arguments = model, params, batch['inputs'], context, dropout
    if self.recurrence and train:
      features, reports = self.recurrent_features(*arguments)
    else:
      features, reports = self.row_features(*arguments, sow)
    return Predicted(features, batch['targets'], weights, reports)

  def row_features(
    self,
    model: nn.Module,
    params: PyTree,
    tokens: Int[Array, 'B T'],
    context: Context,
    key: Array | None,
    sow: Sequence[str] = (),
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """Returns the features of whole rows, and the reports of layers with the collections of `sow`.

    Evaluation reads keys and values from a cache that rounds them, so that it sees what decoding does.
    """
    is_rounded = not context.train and model.stack().cache_type != 'full'
    caches = model.init_caches(*tokens.shape) if is_rounded else None
    (features, _), reports = self.apply_model(
      model, params, key, 'features', tokens, context, caches, sow=sow
    )
    return features, reports

  def recurrent_features(
    self, model: nn.Module, params: PyTree, tokens: Int[Array, 'B T'], context: Context, key: Array
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """Returns the same, computed segment by segment of `recurrence` tokens; no gradient flows through the
    caches.
    """
    rows, length = tokens.shape
    segments = length // self.recurrence

    def step(caches, segment):
      i, tokens, context = segment
      (features, caches), reports = self.apply_model(
        model, params, jax.random.fold_in(key, i), 'features', tokens, context, caches
      )
      return jax.lax.stop_gradient(caches), (features, reports)

    # In a segment, an index is not a position.
    context = jax.tree.map(lambda x: split_into_chunks(x, segments), context.replace(layout='arbitrary'))
    _, (features, reports) = jax.lax.scan(
      step,
      model.init_caches(rows, length),
      (jnp.arange(segments), split_into_chunks(tokens, segments), context),
    )
    features = jnp.moveaxis(features, 0, 1).reshape(rows, length, -1)
    return features, jax.tree.map(lambda x: x.mean(0), reports)

  def prefix_and_weights(
    self, batch: Mapping[str, Array], key: Array | None
  ) -> tuple[Int[Array, 'B T'] | None, Float[Array, 'B T']]:
    """Returns the prefix length of each token's document, or None without prefixes, and the weight of each
    target.
    """
    return None, (batch['segments'] > 0).astype(jnp.float32)
