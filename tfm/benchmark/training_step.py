"""The training step of an experiment on one device, as `tfm train` compiles it, on rows of random tokens."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from tfm.analysis import lowering, plan
from tfm.benchmark.process import OutOfMemory
from tfm.benchmark.timing import seconds_per_call
from tfm.config.assemble import Experiment
from tfm.parallel import freed_memory, sharding
from tfm.parallel import mesh as meshes
from tfm.shapes import PyTree
from tfm.training import state as states


class Prepared(NamedTuple):
  """A training step on one device, compiled, with its arguments."""

  step: lowering.Step
  mesh: Mesh
  compiled: plan.Compiled
  state: states.State
  batch: PyTree


def prepare(experiment: Experiment, vocab: int) -> Prepared:
  """Compiles the step, and makes its state and a batch.

  Raises:
    OutOfMemory: if the step does not fit into the device's memory.
  """
  request = lowering.PlanRequest.from_experiment(experiment, vocab)
  mesh, rules = meshes.make({}, jax.local_devices()[:1]), experiment.rules
  step = lowering.lower_training_step(request, mesh)
  compiled = plan.compile_step(step)
  if compiled.error:
    raise OutOfMemory(plan.summary(compiled.error))
  init = experiment.build_init(request.model)
  where = experiment.state_shardings(states.abstract_state(init), mesh)
  (state,) = states.init_states(init, [0], where, mesh, rules)
  batch = jax.device_put(make_batch(experiment, vocab), sharding.batch_sharding(mesh, rules))
  return Prepared(step, mesh, compiled, state, batch)


def make_batch(experiment: Experiment, vocab: int) -> dict[str, np.ndarray]:
  """Rows of random tokens, each of one document, or of a pair of documents."""
  length, rows = experiment.config.data.length, experiment.config.training.batch_size
  tokens = np.random.default_rng(0).integers(0, vocab, (rows, length + 1))
  positions = np.arange(length)
  known = dict(
    inputs=tokens[:, :-1],
    targets=tokens[:, 1:],
    source=tokens[:, :-1],
    positions=positions,
    source_positions=positions,
  )
  fields = experiment.objective.padding_row(length)
  return {
    name: np.broadcast_to(known.get(name, 1), (rows, *x.shape)).astype(x.dtype) for name, x in fields.items()
  }


def train_repeatedly(prepared: Prepared) -> Callable:
  """A function that makes a step from the state that the step before left, and returns its metrics."""
  executable, state, batch = prepared.compiled.executable, prepared.state, prepared.batch

  def run():
    nonlocal state
    state, metrics = executable(state, batch)
    return metrics

  return run


def tokens_per_second(experiment: Experiment, vocab: int, seconds: float) -> float:
  """The rate of whole training steps, measured for about so many seconds: tokens that are predicted."""
  freed_memory.return_after_compiling()
  prepared = prepare(experiment, vocab)
  run, tokens = train_repeatedly(prepared), prepared.step.tokens
  del prepared  # its program's text needs memory, which is measured, too
  return tokens / seconds_per_call(run, jax.block_until_ready, seconds=seconds)
