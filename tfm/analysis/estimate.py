"""Estimates what a config needs: devices, vocabulary and memory from shapes; measures step time."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType
from ml_collections import ConfigDict

from tfm.config import mesh_constraints
from tfm.config.assemble import Experiment
from tfm.config.schema import parts
from tfm.data.packing.protocol import Row
from tfm.data.row_share import RowShare
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.errors import require
from tfm.evaluation.cost import StepCost, compile_repeated_step, measure_step_cost, time_interleaved
from tfm.models import memory
from tfm.models.trunk import Trunk
from tfm.objectives.protocol import Reference
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.shapes import PyTree
from tfm.training import state as states
from tfm.training.step import with_reference


def device_count(config: ConfigDict) -> int:
  """The devices of a config's mesh; all attached devices where the mesh leaves one axis at -1."""
  sizes, attached = config.mesh.values(), jax.device_count()
  fixed = math.prod(size for size in sizes if size != -1)
  return attached if fixed < 1 or -1 in sizes and attached % fixed == 0 else fixed


def abstract_mesh(config: ConfigDict, devices: int) -> AbstractMesh:
  """The mesh of a config over `devices` devices, which need not be attached."""
  sizes = meshes.resolve(config.mesh.to_dict(), devices)
  return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def vocabulary_sizes(experiment: Experiment) -> tuple[int, int]:
  """(target vocabulary, source vocabulary); the second is 0 where source and target share one vocabulary.

  Reads the text only if a tokenizer learns its vocabulary from it.
  """
  tokenizer, source_tokenizer = experiment.tokenizer, experiment.source_tokenizer
  sizes = vocabulary_size_of(tokenizer), vocabulary_size_of(source_tokenizer)
  if None not in sizes:
    return sizes
  from tfm.data import pipeline  # grain, which a machine for measurements may lack

  text = pipeline.open_text(experiment.source, tokenizer, source_tokenizer=source_tokenizer)
  return text.tokenizer.vocab_size, text.source_tokenizer.vocab_size if source_tokenizer else 0


def vocabulary_size_of(tokenizer: Tokenizer | None) -> int | None:
  """The vocabulary size in a tokenizer's spec; None if it depends on the text, 0 without a tokenizer."""
  if tokenizer is None:
    return 0
  if not (tokenizer.is_trained or tokenizer.needs_training):
    tokenizer = tokenizer.train(())
  return tokenizer.vocab_size if tokenizer.is_trained else getattr(tokenizer, 'size', None)


def abstract_state(experiment: Experiment, model: Trunk) -> states.State:
  """The abstract training state: shapes, with the logical axes of every parameter."""
  return states.abstract_state(experiment.build_init(model))


def memory_by_kind(
  experiment: Experiment,
  vocab: int,
  source_vocab: int,
  boxed: states.State,
  mesh: AbstractMesh,
  rules: sharding.Rules,
) -> list[tuple[str, int, str]]:
  """(category, bytes per device, description) of parameters, gradients, optimizer and activations, and of the
  frozen model with which the objective compares, `boxed.reference`.
  """
  config = experiment.config
  params = memory.on_device(boxed.params, mesh, rules)
  optimizer = memory.on_device(experiment.on_device(boxed).opt_state, mesh, rules)
  frozen = boxed.reference
  activations = activation_bytes(
    experiment, vocab, source_vocab, mesh, rows_at_once(config, mesh, rules), params, frozen
  )
  gradients = ('gradients', params, 'float32')
  if config.training.gradient_accumulation > 1:
    gradients = 'gradients', 2 * params, "float32: a microbatch's and their sum"
  return [
    ('parameters', params, 'float32'),
    *([('reference', memory.on_device(frozen.params, mesh, rules), 'float32, frozen')] if frozen else []),
    gradients,
    ('optimizer', optimizer, config.optimizer.name + ', in host memory' * config.optimizer.offload),
    (
      'activations',
      activations,
      f'estimate: peak of live arrays in the gradient, remat {config.model.remat}',
    ),
  ]


def rows_at_once(config: ConfigDict, mesh: AbstractMesh, rules: sharding.Rules) -> int:
  """Rows of one microbatch on one device."""
  return (
    config.training.batch_size // config.training.gradient_accumulation // shard_count(mesh, rules, 'batch')
  )


def activation_bytes(
  experiment: Experiment,
  vocab: int,
  source_vocab: int,
  mesh: AbstractMesh,
  rows: int,
  param_bytes: int,
  reference: Reference | None = None,
) -> int:
  """`memory.activations` of one device's shard of rows, tokens, heads, feed-forward channels and vocabulary.

  Sizes that a mixer sets itself are counted unsharded.

  Args:
    rows: of one device; param_bytes: of the parameters on one device.
    reference: the frozen model with which the objective compares, boxed; its sizes are counted unsharded.
  """
  config, rules = experiment.config, experiment.rules
  local = config.copy_and_resolve_references()
  # The loss chunk counts tokens of all devices; one device holds those of its rows.
  local.training.loss_chunk = -(-local.training.loss_chunk // shard_count(mesh, rules, 'batch'))
  if not experiment.source.image_shape:
    local.data.length //= shard_count(mesh, rules, 'length')
  for block in parts(local).values():
    block.heads = max(1, block.heads // shard_count(mesh, rules, 'heads'))
    block.kv_heads = math.gcd(block.heads, max(1, block.kv_heads // shard_count(mesh, rules, 'kv_heads')))
    if 'feed_forward_width' in block:
      block.feed_forward_width //= shard_count(mesh, rules, 'mlp')
  vocab, source_vocab = (-(-v // shard_count(mesh, rules, 'vocab')) for v in (vocab, source_vocab))
  schedule = mesh_constraints.pipeline_schedule(config, mesh.shape)
  local_experiment = Experiment(local)
  model = local_experiment.build_model(vocab, source_vocab=source_vocab)
  if schedule is None:
    return peak_live_bytes(local_experiment, model, rows, param_bytes, reference)
  # Pipeline: a stage stores its layers' residuals of every iteration for a microbatch of rows; embeddings and
  # loss, which belong to no stage, are stored for all rows.
  microbatch_rows = max(1, rows // schedule.microbatches)
  stage_experiment = Experiment(
    scale_layers(local, schedule.iterations / (schedule.stages * schedule.repeats))
  )
  encoder = getattr(model, 'encoder', None)
  without_layers = model.clone(
    stack=IdentityStack,
    **{} if encoder is None else dict(encoder=functools.partial(encoder, stack=IdentityStack)),
  )
  stage_model = stage_experiment.build_model(vocab, source_vocab=source_vocab)
  stage_bytes = peak_live_bytes(stage_experiment, stage_model, microbatch_rows, param_bytes)
  outside_bytes = [
    peak_live_bytes(stage_experiment, without_layers, count, param_bytes) for count in (rows, microbatch_rows)
  ]
  return stage_bytes + max(0, outside_bytes[0] - outside_bytes[1])


class IdentityStack(nn.Module):
  """A stack without layers: returns its input."""

  def __call__(self, x, memory, context, caches):
    return x, caches


def scale_layers(config: ConfigDict, factor: float) -> ConfigDict:
  """A config with `factor` times the layers, rounded to whole repetitions of each block pattern."""
  config = config.copy_and_resolve_references()
  for part in parts(config).values():
    if 'layers' in part:
      period = max(1, len(part.pattern))
      part.layers = period * max(1, round(part.layers // period * factor))
  return config


def peak_live_bytes(
  experiment: Experiment, model: Trunk, rows: int, param_bytes: int, reference: Reference | None = None
) -> int:
  """`memory.activations` of a model on `rows` rows, without any sharding of its sizes."""
  params = nn.unbox(abstract_state(experiment, model).params)
  objective = experiment.objective
  row = objective.padding_row(experiment.config.data.length)
  return memory.activations(
    functools.partial(training_loss, objective, model),
    params,
    lambda count: (abstract_batch(row, count), nn.unbox(reference)),
    rows,
    param_bytes / memory.total_bytes(params),
  )


def shard_count(mesh: AbstractMesh, rules: sharding.Rules, axis: str) -> int:
  """The number of shards into which a mesh splits a logical axis."""
  return math.prod(mesh.shape[name] for name in dict(rules).get(axis, ()))


def training_loss(objective, model: Trunk, params, batch):
  """The loss that training differentiates, with dropout, on (rows, reference)."""
  rows, reference = batch
  return with_reference(objective, reference)(model, params, rows, jax.random.key(0))[0]


def abstract_batch(row: Row, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
  """The shapes of a batch of `rows` rows like `row`."""
  return {field: jax.ShapeDtypeStruct((rows, *x.shape), x.dtype) for field, x in row.items()}


def measure_step(experiment: Experiment, seeds: int = 1, rounds: int = 3) -> StepCost:
  """Compiles the training step of `seeds` stacked seeds and measures its cost on a first batch."""
  with prepare_step(experiment, seeds) as (step, state, batch):
    return measure_step_cost(step, state, batch, rounds)


def measure_steps_in_turns(
  base: Experiment, others: Mapping[str, Experiment], seeds: int = 1, rounds: int = 11
) -> dict[str, tuple[float, float]]:
  """Name → (seconds of its step, seconds of the base's step), timed in alternation."""
  seconds = {}
  with prepare_step(base, seeds) as prepared_base:
    run_base, _ = compile_repeated_step(*prepared_base)
  for name, experiment in others.items():
    with prepare_step(experiment, seeds) as prepared_other:
      run_other, _ = compile_repeated_step(*prepared_other)
      base_seconds, other_seconds = time_interleaved((run_base, run_other), rounds)
      seconds[name] = other_seconds, base_seconds
  return seconds


@contextlib.contextmanager
def prepare_step(experiment: Experiment, seeds: int) -> Iterator[tuple[Callable, PyTree, PyTree]]:
  """(jitted training step of `seeds` stacked seeds, their initial state, a first batch).

  Raises:
    ValueError: if the optimizer's state is in host memory.
  """
  config = experiment.config
  require(
    not config.optimizer.offload,
    'config.optimizer.offload=True is not supported where steps are measured; leave it out',
  )
  from tfm.data import pipeline
  from tfm.training import vmapped_runs

  data = pipeline.open_data(
    experiment.source, experiment.tokenizer, source_tokenizer=experiment.source_tokenizer
  )
  vocab, source_vocab = (t.vocab_size if t else 0 for t in (data.tokenizer, data.source_tokenizer))
  model, objective = experiment.build_model(vocab, source_vocab=source_vocab), experiment.objective
  init = experiment.build_init(model)
  rows = objective.rows(experiment.packing, data.tokens('train'), config.data.length, 0, data.tokenizer)
  batch = pipeline.Batches(rows, RowShare.all(config.training.batch_size))[0]
  mesh, rules = vmapped_runs.make_mesh(seeds, jax.devices()), experiment.rules
  initial = states.init_states(
    init, range(seeds), states.state_shardings(states.abstract_state(init), mesh, rules), mesh, rules
  )
  state = vmapped_runs.stack_states(initial, mesh)
  batch = {
    name: jax.device_put(np.stack([x] * seeds), vmapped_runs.stacked_sharding(mesh))
    for name, x in batch.items()
  }
  with sharding.context(mesh, rules):
    step = experiment.build_step(model)
    ensemble_step = vmapped_runs.ensemble_step(
      lambda state, batch, _: step(state, batch), mesh, np.zeros(seeds, np.float32)
    )
    options = experiment.compiler.resolve(jax.default_backend(), mesh.size)
    yield jax.jit(ensemble_step, donate_argnums=0, compiler_options=options), state, batch
