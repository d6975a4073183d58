"""All tokens of a text from the hidden state of its last one."""

import dataclasses

from tfm.mixers.protocol import Context
from tfm.objectives.answers import Answers


@dataclasses.dataclass(frozen=True)
class Reconstruction(Answers):
  """Σ over the tokens of answers of -log p(token | z), where z is the hidden state of the last token (Poli et
  al. 2024, MAD, §3.1: compression). A text must be one row's only one.

  `tfm.models.reconstruction` reads z. The output layer is the model's own, and what the model itself
  predicts of the next token is not trained.
  """

  supports_recurrence = False

  @property
  def reconstructs(self):
    return True

  def predict(self, model, params, batch, key, dropout, sow=()):
    predicted = super().predict(model, params, batch, key, dropout, sow)
    context = Context(batch['positions'], batch['segments'], layout=self.layout)
    features, _ = self.apply_model(model, params, None, 'reconstruct', predicted.features, context)
    return predicted._replace(features=features)
