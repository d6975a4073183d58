"""A target sequence, given a source sequence."""

import dataclasses

import jax.numpy as jnp

from tfm.data.packing.protocol import PAIR_FIELDS
from tfm.data.packing.protocol import padding as empty
from tfm.mixers.protocol import Context
from tfm.objectives.protocol import Prediction


@dataclasses.dataclass(frozen=True)
class Seq2Seq(Prediction):
  """Σ over target tokens of -log p(target | source, the target before) (Sutskever et al. 2014, §2).

  Teacher forcing: the decoder reads the target itself, shifted right by one, behind the token that a text
    begins with: the tokenizer's `bos_id`, which of our own is that which ends one.
  """

  document_kinds = (('source', 'target'),)
  architectures = ('encoder_decoder',)

  @property
  def suggested_packing(self):
    return 'buckets'

  def padding(self, length):
    return empty(length, PAIR_FIELDS)

  def __call__(self, model, params, batch, key):
    train = key is not None
    context = Context(batch['positions'], batch['segments'], train=train, layout=self.layout)
    there = Context(batch['source_positions'], batch['source_segments'], train=train, layout=self.layout)

    def features(model, source, tokens):
      return model.features(tokens, context, None, model.encode(source, there))

    (features, _), reports = self.applied(model, params, key, features, batch['source'], batch['inputs'])
    weights = (batch['segments'] > 0).astype(jnp.float32)
    return self.predicted(model, params, features, batch['targets'], weights, reports)
