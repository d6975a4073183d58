"""The metrics that the validation of a run will have, before it has started."""

import flax.linen as nn
import jax
import numpy as np

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.models.trunk import Trunk


def list_validation_metrics(experiment: Experiment, model: Trunk) -> list[str]:
  """The names of the metrics that the validation of a run computes."""
  objective, tokenizer = experiment.objective, experiment.tokenizer
  sums = jax.eval_shape(
    lambda params, batch: objective(model, params, batch, None)[1],
    nn.unbox(estimate.abstract_state(experiment, model).params),
    estimate.abstract_batch(objective.padding_row(experiment.config.data.length), 1),
  )
  total = {name: np.zeros(x.shape) for name, x in sums.items()}
  metrics = objective.summarize(total, int(tokenizer is not None and tokenizer.is_lossless))
  return [*metrics, *(f'loss/{name}' for name in experiment.source.parts)]
