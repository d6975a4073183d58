"""The training step of a LLaMA of 1B parameters in bfloat16, as `tfm train` compiles it."""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from tfm.analysis import plan
from tfm.benchmark.timing import seconds_per_call
from tfm.benchmark.training_step import Prepared, prepare, train_repeatedly
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.models import memory


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


def prepare_llama(vocab: int, **arguments: Any) -> Prepared:
  """The compiled step of `make_experiment` with its state and a batch."""
  return prepare(make_experiment(**arguments), vocab)


def measure(**arguments: Any) -> dict[str, float]:
  """Tokens/s, model FLOPs utilization, the share of the bound by published peaks, memory, compile time."""
  prepared = prepare_llama(**arguments)
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
  run = train_repeatedly(prepare_llama(**arguments))
  jax.block_until_ready(run())
  folder = pathlib.Path('profile')
  with jax.profiler.trace(folder.resolve()):
    for _ in range(5):
      result = run()
    jax.block_until_ready(result)
  files = [path for path in folder.rglob('*') if path.is_file()]
  return dict(files=len(files), mib=sum(path.stat().st_size for path in files) / 2**20)
