"""Next-token prediction where the answers are."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from tfm.objectives.causal_lm import CausalLM
from tfm.objectives.protocol import Objective


@dataclasses.dataclass(frozen=True)
class Answers(CausalLM):
  """Σ over the tokens of answers of -log p(token | what came before) (Arora et al. 2023, §4: the loss of
  recall tasks).

  All of a text is read, and of it only the answers count.
  """

  document_kinds = (('text', 'answers'),)
  supported_layouts = ('contiguous',)

  @property
  def suggested_packing(self):
    return 'answered'

  @property
  def required_fields(self):
    return frozenset({'answers'})

  def padding(self, length):
    return super().padding(length) | dict(answers=np.zeros(length, np.int32))

  def given(self, batch, key):
    return None, batch['answers'].astype(jnp.float32)

  def sums(self, logits, targets, weights, columns):
    total, sums = super().sums(logits, targets, weights, columns)
    return total, sums | dict(hits=((columns.argmax(logits) == targets) * weights).sum(1))

  def summary(self, total, size):
    """Also `exact`, the share of texts of which every token of an answer was the likeliest: greedy decoding
    would write their answers.
    """
    texts = max(total['texts'], 1)
    rest = {name: value for name, value in total.items() if name not in ('exact', 'texts')}
    return Objective.summary(self, rest, size) | dict(exact=total['exact'] / texts)

  def __call__(self, model, params, batch, key):
    total, sums = super().__call__(model, params, batch, key)
    hits, told = sums.pop('hits'), self.given(batch, key)[1].sum(1)
    exact, texts = ((hits == told) & (told > 0)).sum(), (told > 0).sum()
    if key is None:
      return total, sums | dict(exact=exact, texts=texts)
    # A mean over texts among means over tokens.
    return total, sums | dict(exact=exact / jnp.maximum(texts, 1) * sums['tokens'])
