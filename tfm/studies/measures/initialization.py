"""How a model begins: whether its tokens can be told apart, and how large its gradients are."""

import contextlib
import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from tfm.data import pipeline
from tfm.data.mixture import split_mixture
from tfm.data.row_share import process_share
from tfm.evaluation.evaluate_split import sum_batches
from tfm.objectives.protocol import Objective
from tfm.parallel import sharding
from tfm.runs import load as runs
from tfm.runs.measure_split import evaluation_batch_size
from tfm.shapes import Array, Float, PyTree
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value
from tfm.training import state as states


@dataclasses.dataclass(frozen=True)
class Initialization(protocol.Measure):
  """`token_cosine_at_start`, the mean cosine of the last hidden states of two tokens of a row, and
  `gradient_norm_at_start`, the norm of the gradient of the mean loss in nats: before the first step, on the
  first batch of the validation.

  A cosine near one says that the layers have made all tokens alike (rank collapse, Dong et al. 2021), so that
  little can be learnt until they are told apart. Of the first seed, reported for every seed.
  """

  def validate(self, experiment, model):
    if experiment.config.init_from:
      raise ValueError(
        "measures='initialization' needs a run that starts from random parameters, and "
        f'config.init_from={experiment.config.init_from!r}; remove the measure'
      )

  def metric_names(self, validation):
    return 'token_cosine_at_start', 'gradient_norm_at_start'

  def prepare(self, run):
    self.validate(run.experiment, run.model)
    config, objective, data = run.config, run.experiment.objective, runs.open_data(run)
    part = next(iter(split_mixture(data.tokens('validation'))[1].values()))
    rows = objective.rows(run.experiment.packing, part, config.data.length, None, data.tokenizer)
    with sharding.context(run.mesh, run.rules):
      where = sharding.batch_sharding(run.mesh, run.rules)
      size = evaluation_batch_size(config, where)
      share = process_share(where, size)
      with contextlib.closing(
        pipeline.evaluation_batches(rows, size, share, config.data.reader_threads, 1)
      ) as batches:
        found = sum_batches(
          init_params(run), jax.jit(start_numbers(run.model, objective)), batches, where, share
        )
    values = [Value(name, float(found[name])) for name in self.metric_names(())]
    return lambda params: values


def init_params(run: runs.Run) -> PyTree:
  """The parameters that the run's seed gives."""
  key, _ = jax.random.split(jax.random.key(run.config.seed))
  length = run.config.data.length
  return jax.jit(lambda key: nn.unbox(states.init_params(run.model, key, 1, length)))(key)


def start_numbers(model: nn.Module, objective: Objective):
  """(params, batch) → the token cosine and the gradient norm."""

  def mean_loss(params, batch):
    hidden = []

    def keep(call, args, kwargs, context):
      result = call(*args, **kwargs)
      if context.method_name == 'features':
        hidden.append(result[0] if isinstance(result, tuple) else result)
      return result

    with nn.intercept_methods(keep):
      total, sums = objective(model, params, batch, None)
    return total / jnp.maximum(sums['tokens'], 1), hidden[-1]  # of an encoder-decoder the decoder's

  def numbers(params, batch):
    gradients, x = jax.grad(mean_loss, has_aux=True)(params, batch)
    real = batch['segments'] > 0 if 'segments' in batch else jnp.ones(x.shape[:2])
    return dict(token_cosine_at_start=mean_cosine(x, real), gradient_norm_at_start=optax.tree.norm(gradients))

  return numbers


def mean_cosine(x: Float[Array, 'B T D'], real: Float[Array, 'B T']) -> Float[Array, '']:
  """The mean of x·y / |x||y| over pairs of different real tokens of a row."""
  unit = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12) * real[..., None]
  counts = real.sum(1)
  # |Σ u|² is the sum over all pairs, those of a token with itself, which are one, among them.
  pairs = jnp.square(unit.sum(1)).sum(-1) - counts
  return pairs.sum() / jnp.maximum((counts * (counts - 1)).sum(), 1)
