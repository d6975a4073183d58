"""Next-token prediction of answers only."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from tfm.objectives.causal_lm import CausalLM
from tfm.objectives.protocol import Objective


@dataclasses.dataclass(frozen=True)
class Answers(CausalLM):
  """Σ over the tokens of answers of -log p(token | previous tokens) (Arora et al. 2023, §4: the loss of
  recall tasks).

  The model reads the whole text; the loss is computed on answer tokens only.
  """

  document_kinds = (('text', 'answers'),)
  supported_layouts = ('contiguous',)

  @property
  def suggested_packing(self):
    return 'answered'

  @property
  def required_fields(self):
    return frozenset({'answers'})

  def padding_row(self, length):
    return super().padding_row(length) | dict(answers=np.zeros(length, np.int32))

  def prefix_and_weights(self, batch, key):
    return None, batch['answers'].astype(jnp.float32)

  def sum_tokens(self, logits, targets, weights, shard):
    total, sums = super().sum_tokens(logits, targets, weights, shard)
    return total, sums | dict(hits=((shard.argmax(logits) == targets) * weights).sum(1))

  def summarize(self, total, size):
    """Also `exact`, the fraction of texts in which every answer token had the highest probability: greedy
    decoding would generate their answers.
    """
    texts = max(total['texts'], 1)
    rest = {name: value for name, value in total.items() if name not in ('exact', 'texts')}
    return Objective.summarize(self, rest, size) | dict(exact=total['exact'] / texts)

  def finish(self, predicted, total, sums, batch, key):
    hits, counts = sums.pop('hits'), batch['answers'].sum(1)
    exact, texts = ((hits == counts) & (counts > 0)).sum(), (counts > 0).sum()
    if key is None:
      return total, sums | dict(exact=exact, texts=texts)
    # A mean over texts, while the other metrics are means over tokens.
    return total, sums | dict(exact=exact / jnp.maximum(texts, 1) * sums['tokens'])
