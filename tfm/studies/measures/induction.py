"""Induction heads: attention to what followed the same token before."""

import dataclasses

import numpy as np

from tfm.evaluation.attention_maps import compute_attention, list_kinds
from tfm.evaluation.length_extrapolation import explain_impossible, sum_by_position, validate_model
from tfm.mixers.protocol import Context
from tfm.parallel import host_arrays, sharding
from tfm.shapes import Float, Int
from tfm.spec import Size
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


@dataclasses.dataclass(frozen=True)
class Induction(protocol.Measure):
  """`prefix_matching` on random tokens that are read twice: the attention of a token of the second reading to
  the one after its first, averaged over tokens, of the head that has the most; also of each layer,
  `prefix_matching_in_layer` (Olsson et al. 2022, "prefix matching score"). And `loss_of_first_reading` and
  `loss_of_second_reading`, in nats per token: a model with induction heads has a low second.

  Attributes:
    length: of a reading; rows: how many are read.
  """

  length: Size = 25
  rows: Size = 32

  def validate(self, experiment, model):
    validate_model(model, ())
    if impossible := explain_impossible(model, 2 * self.length):
      raise ValueError(f"measures='induction(length={self.length})' is {impossible}")

  def metric_names(self, validation):
    return 'prefix_matching', 'loss_of_first_reading', 'loss_of_second_reading'

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    once = np.random.default_rng(0).integers(run.model.vocab, size=(self.rows, self.length))
    tokens = np.concatenate([once, once], axis=1).astype(np.int32)

    def measure(params):
      with sharding.context(run.mesh, run.rules):
        return [*self.measure_attention(run, params, tokens), *self.measure_losses(run, params, tokens)]

    return measure

  def measure_attention(self, run, params, tokens: Int[np.ndarray, 'B T']) -> list[Value]:
    """The prefix matching of the best head of all, and of each layer."""
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    context = Context(positions, np.ones_like(tokens))
    sown = host_arrays.fetch(compute_attention(run.model, params, tokens, context))
    [kind] = list_kinds(run.model)
    layers = {i: self.match(weights) for i, weights in enumerate(kind.weights(sown)) if weights is not None}
    if not layers:
      return [Value('prefix_matching', None, why='no mixer of the model has attention weights')]
    return [
      Value('prefix_matching', max(layers.values())),
      *(Value('prefix_matching_in_layer', value, i) for i, value in layers.items()),
    ]

  def match(self, weights: Float[np.ndarray, 'B H T S']) -> float:
    """The mean attention of tokens of the second reading to the one after their first, of the best head."""
    queries = np.arange(
      self.length, 2 * self.length - 1
    )  # the last token's successor is its own second reading
    return float(weights[:, :, queries, queries - self.length + 1].mean(axis=(0, 2)).max())

  def measure_losses(self, run, params, tokens: Int[np.ndarray, 'B T']) -> list[Value]:
    """The mean losses of both readings."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    batch = dict(
      inputs=inputs,
      targets=targets,
      positions=np.broadcast_to(np.arange(inputs.shape[1], dtype=np.int32), inputs.shape),
      segments=np.ones_like(inputs),
      counted=np.ones_like(inputs),
    )
    sums = host_arrays.fetch(sum_by_position(run.model, params, batch, 0))
    losses = sums['loss'] / sums['tokens']
    return [
      Value('loss_of_first_reading', float(losses[: self.length - 1].mean())),
      Value('loss_of_second_reading', float(losses[self.length :].mean())),
    ]
