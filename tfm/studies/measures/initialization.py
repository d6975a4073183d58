"""How a model begins: whether its tokens can be told apart, and how large its gradients are."""

import contextlib
import dataclasses
from collections.abc import Callable

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
from tfm.runs.init_from import fill_params, load_pretrained
from tfm.runs.measure_split import evaluation_batch_size
from tfm.shapes import Array, Float, PyTree
from tfm.studies.measures import protocol
from tfm.studies.measures.protocol import Value
from tfm.training import state as states
from tfm.training.gradient_transforms import keep_leaves


@dataclasses.dataclass(frozen=True)
class Initialization(protocol.Measure):
  """`token_cosine_at_start`, the mean cosine of the last hidden states of two tokens of a row, and
  `gradient_norm_at_start`, the norm of the gradient of the mean validation loss in nats by the parameters
  that are trained: before the first step, on the first batch of the validation.

  A cosine near one says that the layers have made all tokens alike (rank collapse, Dong et al. 2021), so that
  little can be learnt until they are told apart. Of the first seed, reported for every seed. A run that
  starts from another begins with the last parameters of that.
  """

  def metric_names(self, validation):
    return 'token_cosine_at_start', 'gradient_norm_at_start'

  def prepare(self, run):
    config, objective, data = run.config, run.experiment.objective, runs.open_data(run)
    part = next(iter(split_mixture(data.tokens('validation'))[1].values()))
    rows = objective.rows(run.experiment.packing, part, config.data.length, None, data.tokenizer)
    params = init_params(run)
    with sharding.context(run.mesh, run.rules):
      where = sharding.batch_sharding(run.mesh, run.rules)
      size = evaluation_batch_size(config, where)
      share = process_share(where, size)
      with contextlib.closing(
        pipeline.evaluation_batches(rows, size, share, config.data.reader_threads, 1)
      ) as batches:
        measure = jax.jit(start_numbers(run.model, objective, run.experiment.optimizer.is_trainable))
        found = sum_batches(params, measure, batches, where, share)
    values = [Value(name, float(found[name])) for name in self.metric_names(())]
    return lambda params: values


def init_params(run: runs.Run) -> PyTree:
  """The parameters that the run's seed gives, and those of config.init_from."""
  key, _ = jax.random.split(jax.random.key(run.config.seed))
  length, lora = run.config.data.length, run.experiment.lora
  with sharding.context(run.mesh, run.rules):
    params = jax.jit(lambda key: nn.unbox(states.init_params(run.model, key, 1, length, lora)))(key)
  if not run.config.init_from:
    return params
  pretrained = load_pretrained(run.config)
  new = pretrained.drop_frozen_params(params, is_trainable=lambda path: False)
  return fill_params(new, params, pretrained.restore(run.mesh, run.rules))


def start_numbers(model: nn.Module, objective: Objective, is_trainable: Callable[[str], bool]):
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
    norm = optax.tree.norm(keep_leaves(is_trainable, gradients))
    return dict(token_cosine_at_start=mean_cosine(x, real), gradient_norm_at_start=norm)

  return numbers


def mean_cosine(x: Float[Array, 'B T D'], real: Float[Array, 'B T']) -> Float[Array, '']:
  """The mean of x·y / |x||y| over pairs of different real tokens of a row."""
  unit = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12) * real[..., None]
  counts = real.sum(1)
  # |Σ u|² is the sum over all pairs, those of a token with itself, which are one, among them.
  pairs = jnp.square(unit.sum(1)).sum(-1) - counts
  return pairs.sum() / jnp.maximum((counts * (counts - 1)).sum(), 1)
