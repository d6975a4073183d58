"""A target sequence, given a source sequence."""

import dataclasses

import jax.numpy as jnp

from tfm.data.packing.protocol import PAIR_FIELDS, padding_row
from tfm.mixers.protocol import Context
from tfm.objectives.protocol import Predicted, Prediction


@dataclasses.dataclass(frozen=True)
class Seq2Seq(Prediction):
  """Σ over target tokens of -log p(target | source, previous targets) (Sutskever et al. 2014, §2).

  Teacher forcing: the decoder reads the target, shifted right by one, after the tokenizer's `bos_id`, which
    is `eos_id` for all but published tokenizers.
  """

  document_kinds = (('source', 'target'),)
  architectures = ('encoder_decoder',)

  @property
  def suggested_packing(self):
    return 'buckets'

  def padding_row(self, length):
    return padding_row(length, PAIR_FIELDS)

  def predict(self, model, params, batch, key, dropout, sow=()):
    train = dropout is not None
    context = Context(batch['positions'], batch['segments'], train=train, layout=self.layout)
    source_context = Context(
      batch['source_positions'], batch['source_segments'], train=train, layout=self.layout
    )

    def features(model, source, tokens):
      return model.features(tokens, context, None, model.encode(source, source_context))

    (features, _), reports = self.apply_model(
      model, params, dropout, features, batch['source'], batch['inputs'], sow=sow
    )
    weights = (batch['segments'] > 0).astype(jnp.float32)
    return Predicted(features, batch['targets'], weights, reports)
