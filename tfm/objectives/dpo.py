"""Preferences between two continuations."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Interval

from tfm.data.packing.preferences import REJECTED, Preferences, preference_row
from tfm.errors import require
from tfm.layers.chunked_cross_entropy import chunk_count, split_into_chunks
from tfm.layers.cross_entropy import WHOLE_VOCABULARY, cross_entropy_with_z_loss
from tfm.mixers.protocol import Context
from tfm.objectives.protocol import Objective, add_reports
from tfm.shapes import Array, Float


@dataclasses.dataclass(frozen=True)
class DPO(Objective):
  """Σ over prompts of -log σ(r_chosen - r_rejected), with the implicit reward of a continuation
  r = β · (log π(continuation | prompt) - log π_ref(continuation | prompt)) (Rafailov et al. 2023, eq. 7).

  Both sequences of a row are computed together. The reference is frozen and has no dropout; an evaluation
  reads it, too. `accuracy` is the fraction of prompts whose chosen continuation has the greater reward.

  Attributes:
    reference: the directory of a trained or imported run, usually that of config.init_from.
    beta: β; the smaller, the farther the model may leave its reference.

  Raises:
    ValueError: for a β that is not above 0.
  """

  document_kinds = (('prompt', 'chosen', 'rejected'),)
  supported_layouts = ('contiguous',)
  evaluates_with_reference = True

  reference: str
  beta: Annotated[float, Interval(gt=0, le=1e4)] = 0.1

  def __post_init__(self):
    require(self.beta > 0, f'beta={self.beta} must be above 0')

  @property
  def reference_workdir(self):
    return self.reference

  @property
  def required_fields(self):
    return Preferences.extra_fields

  @property
  def suggested_packing(self):
    return 'preferences'

  def padding_row(self, length):
    return preference_row(length)

  def summarize(self, total, size):
    """Returns `loss` in nats, `accuracy`, the rewards, and `tokens`, the number of prompts."""
    del size
    count = max(total['tokens'], 1)
    return {name: x / (1 if name == 'tokens' else count) for name, x in total.items()}

  def __call__(self, model, params, batch, key, reference=None):
    log_p, reports = self.log_probabilities(model, params, batch, key)
    self.require_reference(reference)
    log_reference, _ = self.log_probabilities(reference.model, reference.params, batch, None)
    rewards = self.beta * (log_p - log_reference)
    margins = rewards[:, 0] - rewards[:, 1]
    counts = (batch['answers'] > 0).any(1).astype(jnp.float32)  # padding has no continuation
    losses = -jax.nn.log_sigmoid(margins)
    values = dict(
      loss=losses, accuracy=margins > 0, chosen_reward=rewards[:, 0], rejected_reward=rewards[:, 1]
    )
    sums = {name: (x * counts).sum() for name, x in values.items()} | dict(tokens=counts.sum())
    return add_reports(sums['loss'], sums, reports)

  def log_probabilities(self, model, params, batch, key) -> tuple[Float[Array, 'B 2'], dict]:
    """Returns log p of both continuations of each prompt, the chosen one first, and the reports of layers."""

    def both(field):  # side by side, so that a device has both sequences of its rows
      return jnp.stack([batch[field], batch[f'{REJECTED}{field}']], 1).reshape(-1, batch[field].shape[1])

    train = key is not None
    context = Context(both('positions'), both('segments'), train=train, layout=self.layout)
    (features, _), reports = self.apply_model(model, params, key, 'features', both('inputs'), context)

    def sum_chunk(rows):
      features, targets, weights = rows
      logits = model.apply({'params': model.head(params)}, features, method='logits')
      _, losses = cross_entropy_with_z_loss(WHOLE_VOCABULARY, 0.0, 0.0, logits, targets)
      return -(losses * weights).sum(1)

    rows = features, both('targets'), both('answers').astype(jnp.float32)
    chunks = chunk_count(*features.shape[:2], self.chunk)
    if chunks == 1:
      sums = sum_chunk(rows)
    else:  # the backward pass computes the logits again
      chunked = jax.tree.map(lambda x: split_into_chunks(x, chunks), rows)
      sums = jax.lax.map(jax.checkpoint(sum_chunk), chunked).sum(0)
    return sums.reshape(-1, 2), reports
