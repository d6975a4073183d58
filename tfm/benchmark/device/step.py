"""The training step of a LLaMA of 1B parameters in bfloat16, as `tfm train` compiles it."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from tfm.analysis import lowering, plan
from tfm.benchmark.device.timing import seconds_per_call
from tfm.benchmark.process import OutOfMemory
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.models import memory
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.shapes import PyTree
from tfm.training import state as states


def make_experiment(length: int, rows: int, model: Mapping[str, int], **changes: str | bool) -> Experiment:
  """LLaMA 3.2 of 1B (or smaller, as `model` says) with rows of random tokens.

  Args:
    changes: kernel, remat, scan, flags (of the compiler).
  """
  config = load_config('llama:3.2-1b')
  config.data.update(source='stdlib', tokenizer='bytes', length=length)
  config.model.update(model, dtype='bfloat16', remat=changes.get('remat', 'none'))
  config.model.update(kernel=changes.get('kernel', 'auto'), scan=changes.get('scan', True))
  config.compiler.flags = changes.get('flags', 'auto')
  config.training.update(batch_size=rows, gradient_accumulation=1)
  return Experiment(resolve_config(config))


class Prepared(NamedTuple):
  """A training step on one device, compiled, with its arguments."""

  step: lowering.Step
  mesh: Mesh
  compiled: plan.Compiled
  state: states.State
  batch: PyTree


def prepare(vocab: int, **arguments: Any) -> Prepared:
  """Compiles the step, and makes its state and a batch.

  Raises:
    OutOfMemory: if the step does not fit into the device's memory.
  """
  experiment = make_experiment(**arguments)
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
  """Rows of random tokens, each of one document."""
  length, rows = experiment.config.data.length, experiment.config.training.batch_size
  tokens = np.random.default_rng(0).integers(0, vocab, (rows, length + 1))
  known = dict(inputs=tokens[:, :-1], targets=tokens[:, 1:], positions=np.arange(length))
  fields = experiment.objective.padding_row(length)
  return {
    name: np.broadcast_to(known.get(name, 1), (rows, *x.shape)).astype(x.dtype) for name, x in fields.items()
  }


def measure(**arguments: Any) -> dict[str, float]:
  """Tokens/s, model FLOPs utilization, the share of the bound by published peaks, memory, compile time."""
  prepared = prepare(**arguments)
  step, compiled = prepared.step, prepared.compiled
  seconds = seconds_per_call(train_repeatedly(prepared), jax.block_until_ready, seconds=5.0)
  found = dict(
    tokens_per_second=step.tokens / seconds,
    ms=1000 * seconds,
    gib=memory.peak_usage() / 2**30,
    compile_seconds=compiled.seconds,
  )
  analysis = plan.analyze_step(step, prepared.mesh, compiled)
  if analysis.bound:
    found |= dict(
      mfu=step.flops / seconds / analysis.chip.flops, share_of_bound=analysis.bound.seconds / seconds
    )
  return found


def profile(**arguments: Any) -> dict[str, float]:
  """A trace of five steps in the folder `profile`, for TensorBoard, XProf or Perfetto."""
  run = train_repeatedly(prepare(**arguments))
  jax.block_until_ready(run())
  folder = pathlib.Path('profile')
  with jax.profiler.trace(folder.resolve()):
    for _ in range(5):
      result = run()
    jax.block_until_ready(result)
  files = [path for path in folder.rglob('*') if path.is_file()]
  return dict(files=len(files), mib=sum(path.stat().st_size for path in files) / 2**20)


def train_repeatedly(prepared: Prepared) -> Callable:
  """A function that makes a step from the state that the step before left, and returns its metrics."""
  state = prepared.state

  def run():
    nonlocal state
    state, metrics = prepared.compiled.executable(state, prepared.batch)
    return metrics

  return run
