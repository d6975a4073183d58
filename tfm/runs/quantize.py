"""Post-training quantization: a run whose projections are stored in integers."""

import collections
import contextlib
import dataclasses
import functools
import math
import pathlib

import jax
import jax.numpy as jnp

from tfm.config.assemble import Experiment
from tfm.config.load import to_json
from tfm.config.resolve import resolve_config
from tfm.data import pipeline
from tfm.data.mixture import split_mixture
from tfm.data.progress_bar import track
from tfm.data.special_tokens import base_tokenizer
from tfm.errors import require
from tfm.layers.lora import merge_adapters
from tfm.layers.quantization import INPUT_SCALE, INPUT_SIZES, KERNEL_SCALE, Quantization
from tfm.objectives.protocol import Prediction
from tfm.runs.init_from import abstract_params, build_model, leaves_by_path
from tfm.runs.load import Run, open_evaluation_data
from tfm.shapes import Array, Float, PyTree
from tfm.spec import parse
from tfm.training import checkpoint
from tfm.training.atomic_files import write_atomically


# Batches of the training split by which inputs are calibrated.
CALIBRATION_BATCHES = 8


def quantize_run(run: Run, quantization: str | None = None, batches: int | None = None) -> Run:
  """The same model with its projections in integers, and a config that says so.

  Args:
    quantization: as config.model.quantization; None: that of the run, with which it was trained.
    batches: of the training split, for a calibration; None: `CALIBRATION_BATCHES`.

  Raises:
    ValueError: for a run that is quantized, no quantization, batches for one that is not calibrated, and a
      calibration of what is not trained to predict tokens.
  """
  config = run.config.copy_and_resolve_references()
  before = run.experiment.quantization
  require(
    not (before and before.stored),
    f'config.model.quantization={config.model.quantization!r}: the run is stored in integers already',
  )
  call = parse(quantization or config.model.quantization)
  require(
    call.name != 'none',
    "config.model.quantization='none' of the run; set --quantization, such as int8 or int4(group=64)",
  )
  config.model.quantization = str(dataclasses.replace(call, kwargs={**call.kwargs, 'stored': True}))
  config.update(init_from='', lora=dict(rank=0))  # adapters are merged
  experiment = Experiment(resolve_config(config))
  model = build_model(experiment, base_tokenizer(run.tokenizer), run.source_tokenizer)
  target = abstract_params(experiment, model)
  require(
    batches is None or experiment.quantization.calibrated,
    f'--calibrate={batches} has no effect on --quantization={call}; use one with calibrated=True',
  )
  sizes = measure_inputs(run, batches or CALIBRATION_BATCHES) if experiment.quantization.calibrated else {}
  params = jax.jit(lambda params, sizes: quantize_params(params, target, experiment.quantization, sizes))(
    merge_adapters(run.params), sizes
  )
  return dataclasses.replace(run, experiment=experiment, model=model, params=params)


def measure_inputs(run: Run, batches: int) -> PyTree:
  """The greatest |x| that each projection reads, in the structure of the parameters.

  Args:
    batches: how many of each source, spread over its training split.
  """
  config, objective = run.config, run.experiment.objective
  require(
    isinstance(objective, Prediction),
    f'config.objective={config.objective!r} predicts no tokens, and calibrated=True needs their batches; '
    'leave it out',
  )
  data = open_evaluation_data(run)
  model, params = run.model, merge_adapters(run.params)

  @jax.jit
  def measure(params, batch):
    return objective.predict(model, params, batch, None, None, sow=(INPUT_SIZES,)).reports[INPUT_SIZES]

  sizes = None
  for name, tokens in split_mixture(data.tokens('train'))[1].items():
    rows = objective.rows(run.experiment.packing, tokens, config.data.length, None, data.tokenizer)
    iterator = pipeline.evaluation_batches(rows, config.training.batch_size, limit=batches)
    with contextlib.closing(iterator):
      for batch in track(iterator, f'measuring the inputs of projections {name}'.strip(), batches):
        new = measure(params, batch)
        sizes = new if sizes is None else jax.tree.map(jnp.maximum, sizes, new)
  return sizes


def quantize_params(params: PyTree, target: PyTree, quantization: Quantization, sizes: PyTree) -> PyTree:
  """The parameters in the structure of `target`, boxed, which has scales beside the kernels to quantize.

  Args:
    sizes: of the inputs, for a calibration.
  """
  if KERNEL_SCALE in target:
    box = target[KERNEL_SCALE]
    quantize = functools.partial(quantize_kernel, quantization, box.value.shape[box.names.index('rank') :])
    quantize = jax.vmap(quantize) if box.names[0] == 'layers' else quantize
    integers, scales = quantize(params['kernel'])
    added = {INPUT_SCALE: quantization.input_scale(sizes['size'])} if INPUT_SCALE in target else {}
    return {**params, 'kernel': integers, KERNEL_SCALE: scales} | added
  return {
    name: quantize_params(params[name], part, quantization, sizes.get(name, {}))
    if isinstance(part, dict)
    else params[name]
    for name, part in target.items()
  }


def quantize_kernel(
  quantization: Quantization, scale_shape: tuple[int, ...], kernel: Float[Array, '...']
) -> tuple[Array, Float[Array, '...']]:
  """The integers of a kernel [*rows, *columns], in its shape, and their scales [groups, *columns]."""
  integers, scales = quantization.quantize(kernel.reshape(-1, math.prod(scale_shape[1:])))
  return integers.reshape(kernel.shape), scales.reshape(scale_shape)


def list_unquantized(run: Run) -> dict[str, int]:
  """The bytes of the parameters that are as they were trained, the largest first; vectors together."""
  leaves, sizes = leaves_by_path(run.params), collections.Counter()
  for path, x in leaves.items():
    module, _, name = path.rpartition('/')
    if f'{module}/{KERNEL_SCALE}' not in leaves or name == 'bias':
      sizes['norms and biases' if name in ('scale', 'bias') else path] += x.nbytes
  return dict(sizes.most_common())


def save_run(run: Run, workdir: str, origin: str) -> None:
  """Writes a run as the only checkpoint of a new directory, from which training cannot resume.

  Args:
    origin: the directory of the run that it was made from, whose metadata it has.

  Raises:
    ValueError: if the directory holds a run.
  """
  path, config = pathlib.Path(workdir), run.config
  require(not (path / 'checkpoints').exists(), f'--to={workdir} holds a run; use a new directory')
  with contextlib.closing(checkpoint.Checkpoints(pathlib.Path(origin))) as checkpoints:
    metadata = checkpoints.read_metadata(run.step)
  path.mkdir(parents=True, exist_ok=True)
  write_atomically(path / 'config.json', to_json(config))
  metadata = {name: x for name, x in metadata.items() if name != 'init_from'}
  with contextlib.closing(checkpoint.Checkpoints(path, keep=1)) as checkpoints:
    checkpoints.save_params(run.params, metadata | dict(config=config.to_dict(), data=None))
