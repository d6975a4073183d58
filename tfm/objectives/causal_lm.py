"""Next-token prediction."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.layers.chunked_cross_entropy import split_into_chunks
from tfm.mixers.protocol import Context
from tfm.objectives.protocol import Prediction
from tfm.shapes import Array, Float, Int, PyTree


@dataclasses.dataclass(frozen=True)
class CausalLM(Prediction):
  """Σ over tokens of -log p(target | what came before) (Radford et al. 2018, eq. 1)."""

  supports_recurrence = True

  def __call__(self, model, params, batch, key):
    prefix, weights = self.given(batch, key)
    context = Context(
      batch['positions'], batch['segments'], prefix, train=key is not None, layout=self.layout
    )
    read = self.in_turn if self.recurrence and key is not None else self.at_once
    features, reports = read(model, params, batch['inputs'], context, key)
    return self.predicted(model, params, features, batch['targets'], weights, reports)

  def at_once(
    self, model: nn.Module, params: PyTree, tokens: Int[Array, 'B T'], context: Context, key: Array | None
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """The features of whole rows, and what layers report."""
    (features, _), reports = self.applied(model, params, key, 'features', tokens, context)
    return features, reports

  def in_turn(
    self, model: nn.Module, params: PyTree, tokens: Int[Array, 'B T'], context: Context, key: Array
  ) -> tuple[Float[Array, 'B T D'], PyTree]:
    """The same, piece after piece of `recurrence` tokens: the caches of what was read pass no gradient back."""
    rows, length = tokens.shape
    pieces = length // self.recurrence

    def step(caches, piece):
      i, tokens, context = piece
      (features, caches), reports = self.applied(
        model, params, jax.random.fold_in(key, i), 'features', tokens, context, caches
      )
      return jax.lax.stop_gradient(caches), (features, reports)

    # In a piece an index is no position.
    context = jax.tree.map(lambda x: split_into_chunks(x, pieces), context.replace(layout='arbitrary'))
    _, (features, reports) = jax.lax.scan(
      step, model.init_caches(rows, length), (jnp.arange(pieces), split_into_chunks(tokens, pieces), context)
    )
    features = jnp.moveaxis(features, 0, 1).reshape(rows, length, -1)
    return features, jax.tree.map(lambda x: x.mean(0), reports)

  def given(
    self, batch: Mapping[str, Array], key: Array | None
  ) -> tuple[Int[Array, 'B T'] | None, Float[Array, 'B T']]:
    """The prefix length of each token's document, where there are prefixes, and the weight of each target."""
    return None, (batch['segments'] > 0).astype(jnp.float32)
