"""Next-token prediction, and of further tokens by modules that training alone has."""

import dataclasses

import jax
import jax.numpy as jnp

from tfm.mixers.protocol import Context
from tfm.objectives.causal_lm import CausalLM
from tfm.shapes import Array, Float, Int
from tfm.spec import NonNegativeFloat, Size


@dataclasses.dataclass(frozen=True)
class MultiTokenPrediction(CausalLM):
  """L_1 + weight / further · Σ_k L_{1+k}, where L_j is the loss of the token j places on in the document
  (DeepSeek-AI 2024, DeepSeek-V3, §2.2).

  A chain of modules, `tfm.models.future_prediction`, predicts the further tokens, each from the hidden states
  of the one before and the tokens that those predict. Evaluation and decoding use the model alone.

  Attributes:
    further: how many tokens are predicted beyond the next one.
    weight: of their losses.
  """

  further: Size = 1
  weight: NonNegativeFloat = 0.3

  supports_recurrence = False

  @property
  def further_tokens(self):
    return self.further

  def __call__(self, model, params, batch, key):
    if key is None:
      return super().__call__(model, params, batch, key)
    prefix, weights = self.prefix_and_weights(batch, key)
    context = Context(batch['positions'], batch['segments'], prefix, train=True, layout=self.layout)
    features, reports = self.row_features(model, params, batch['inputs'], context, key)
    further, more = self.apply_model(
      model, params, jax.random.fold_in(key, 1), 'further_features', features, batch['inputs'], context
    )
    reports = {name: {**reports.get(name, {}), **more.get(name, {})} for name in {*reports, *more}}
    total, sums = self.compute_loss(model, params, features, batch['targets'], weights, reports)
    added = 0.0
    for k, features in enumerate(further, 1):
      targets, of = shift(batch['targets'], k), shift(weights, k)
      of = of * (shift(batch['segments'], k) == batch['segments'])
      loss, _ = self.compute_loss(model, params, features, targets, of, {})
      added += self.weight / self.further * loss
    return total + added, sums | dict(auxiliary=sums.get('auxiliary', 0.0) + added)


def shift(x: Float[Array, 'B T'] | Int[Array, 'B T'], by: int) -> Float[Array, 'B T'] | Int[Array, 'B T']:
  """What stands `by` places on in the row, and zeros at its end."""
  return jnp.pad(x[:, by:], ((0, 0), (0, min(by, x.shape[1]))))
