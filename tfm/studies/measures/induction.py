"""Induction heads: attention to what followed the same token before."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from tfm.data import pipeline
from tfm.errors import require
from tfm.evaluation.attention_maps import compute_attention, list_kinds
from tfm.evaluation.length_extrapolation import explain_impossible, sum_by_position, validate_model
from tfm.mixers.protocol import Context
from tfm.objectives.causal_lm import CausalLM
from tfm.parallel import host_arrays, sharding
from tfm.runs.load import Run, open_evaluation_data
from tfm.shapes import Bool, Float, Int, PyTree
from tfm.spec import Size
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value


LONGEST = 512  # tokens of a text that are read; attention weights take memory by their square


@dataclasses.dataclass(frozen=True)
class Induction(protocol.Measure):
  """`prefix_matching` on random tokens that are read twice: the attention of a token of the second reading to
  the one after its first, averaged over tokens, of the head that has the most; also of each layer,
  `prefix_matching_by_layer` (Olsson et al. 2022, "prefix matching score"). And `loss_of_first_reading` and
  `loss_of_second_reading`, in nats per token: a model with induction heads has a low second.

  `prefix_matching_of_text`, and `…_by_layer`, is the same on texts of the validation split: the attention of
  a token to all that followed it before and follow it again, averaged over the counted targets that end such
  a bigram of their text. A model that was trained on texts of one form may have it there alone. The random
  tokens are of those that these texts have, as a model gives no meaning to one that it has never read.

  Attributes:
    length: of a reading; rows: how many are read, of random tokens and of the validation split.

  Raises (from `validate`):
    ValueError: for a model that is no decoder or has too few positions, and for an objective that does not
      predict each next token.
  """

  length: Size = 25
  rows: Size = 32

  def validate(self, experiment, model):
    validate_model(model, ())
    objective = experiment.objective
    require(
      isinstance(objective, CausalLM),
      f'induction needs an objective that predicts each next token, and {type(objective).__name__} does not; '
      'use causal_lm or answers',
    )
    if impossible := explain_impossible(model, 2 * self.length):
      raise ValueError(f"measures='induction(length={self.length})' is {impossible}")

  def metric_names(self, validation):
    return ('prefix_matching', 'prefix_matching_of_text', 'loss_of_first_reading', 'loss_of_second_reading')

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    batch = self.read_texts(run)
    known = np.unique(batch['inputs'][batch['segments'] > 0])
    once = np.random.default_rng(0).choice(known, size=(self.rows, self.length))
    tokens = np.concatenate([once, once], axis=1).astype(np.int32)

    def measure(params):
      with sharding.context(run.mesh, run.rules):
        return [
          *self.match_readings(run, params, tokens),
          *match_text(run, params, batch),
          *self.measure_losses(run, params, tokens),
        ]

    return measure

  def read_texts(self, run: Run) -> dict[str, np.ndarray]:
    """The first rows of the validation split, as validation reads them, and the beginning of long ones."""
    data = open_evaluation_data(run)
    config, objective = run.config, run.experiment.objective
    rows = objective.rows(
      run.experiment.packing, data.tokens('validation'), config.data.length, None, data.tokenizer
    )
    batch = next(iter(pipeline.evaluation_batches(rows, self.rows)))
    return {name: array[:, :LONGEST] for name, array in batch.items()}

  def match_readings(self, run: Run, params: PyTree, tokens: Int[np.ndarray, 'B T']) -> list[Value]:
    """The prefix matching on random tokens, of the best head of all and of each layer."""
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    where = np.zeros((*tokens.shape, tokens.shape[1]), bool)
    # The successor of the last token's first reading is its own second.
    queries = np.arange(self.length, 2 * self.length - 1)
    where[:, queries, queries - self.length + 1] = True
    context = Context(positions, np.ones_like(tokens))
    return name_layers('prefix_matching', match_layers(run, params, tokens, context, where))

  def measure_losses(self, run: Run, params: PyTree, tokens: Int[np.ndarray, 'B T']) -> list[Value]:
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


def match_text(run: Run, params: PyTree, batch: Mapping[str, np.ndarray]) -> list[Value]:
  """The prefix matching on texts, of the best head of all and of each layer."""
  objective, metric = run.experiment.objective, 'prefix_matching_of_text'
  prefix, weights = objective.prefix_and_weights(batch, None)
  where = find_successors(batch, np.asarray(weights) > 0)
  if not where.any():
    return [Value(metric, None, why=f'{metric}: no counted target ends a bigram that its text had before')]
  context = Context(batch['positions'], batch['segments'], prefix, layout=objective.layout)
  return name_layers(metric, match_layers(run, params, batch['inputs'], context, where))


def find_successors(
  batch: Mapping[str, Int[np.ndarray, 'B T']], counted: Bool[np.ndarray, 'B T']
) -> Bool[np.ndarray, 'B T S']:
  """Whether input s is the target t, and s - 1 is the input t, in one document, of the counted targets."""
  inputs, targets, segments = (batch[name] for name in ('inputs', 'targets', 'segments'))
  before = np.pad(inputs, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
  of_before = np.pad(segments, ((0, 0), (1, 0)))[:, :-1]
  successors = (before[:, None] == inputs[..., None]) & (inputs[:, None] == targets[..., None])
  in_document = (of_before[:, None] == segments[..., None]) & (segments[:, None] == segments[..., None])
  return np.tril(successors & in_document) & counted[..., None]


def match_layers(
  run: Run, params: PyTree, tokens: Int[np.ndarray, 'B T'], context: Context, where: Bool[np.ndarray, 'B T S']
) -> dict[int, float]:
  """Layer → Σ over keys of attention where `where`, averaged over queries that have some, of its best head.

  Layers without attention weights are left out. Rows are read one by one.
  """
  [kind] = list_kinds(run.model)
  sums: dict[int, Float[np.ndarray, 'H']] = {}
  for row in range(len(tokens)):
    one: Any = jax.tree.map(lambda x: x[row : row + 1], (tokens, context))
    sown = host_arrays.fetch(compute_attention(run.model, params, *one))
    for layer, weights in enumerate(kind.weights(sown)):
      if weights is not None:
        sums[layer] = sums.get(layer, 0) + np.einsum('HTS,TS->H', weights[0], where[row])
  return {layer: float(of_heads.max() / where.any(-1).sum()) for layer, of_heads in sums.items()}


def name_layers(metric: str, layers: Mapping[int, float]) -> list[Value]:
  """The values of a metric from those of the layers: the greatest, and each."""
  if not layers:
    return [Value(metric, None, why='no mixer of the model has attention weights')]
  return [
    Value(metric, max(layers.values())),
    *(Value(f'{metric}_by_layer', value, layer) for layer, value in layers.items()),
  ]
