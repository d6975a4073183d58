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
from tfm.data.special_tokens import base_tokenizer
from tfm.errors import require
from tfm.layers.lora import merge_adapters
from tfm.layers.quantization import KERNEL_SCALE, Quantization
from tfm.runs.init_from import abstract_params, build_model, leaves_by_path
from tfm.runs.load import Run
from tfm.shapes import Array, Float, PyTree
from tfm.spec import parse
from tfm.training import checkpoint
from tfm.training.atomic_files import write_atomically

VECTORS = '/scale', '/bias', f'/{KERNEL_SCALE}'


def quantize_run(run: Run, quantization: str | None = None) -> Run:
  """The same model with its projections in integers, and a config that says so.

  Args:
    quantization: as config.model.quantization; None: that of the run, with which it was trained.

  Raises:
    ValueError: for a run that is quantized, or no quantization.
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
  params = jax.jit(lambda params: quantize_params(params, target, experiment.quantization))(
    merge_adapters(run.params)
  )
  return dataclasses.replace(run, experiment=experiment, model=model, params=params)


def quantize_params(params: PyTree, target: PyTree, quantization: Quantization) -> PyTree:
  """The parameters in the structure of `target`, boxed, which has scales beside the kernels to quantize."""
  if KERNEL_SCALE in target:
    box = target[KERNEL_SCALE]
    quantize = functools.partial(quantize_kernel, quantization, box.value.shape[box.names.index('rank') :])
    quantize = jax.vmap(quantize) if box.names[0] == 'layers' else quantize
    integers, scales = quantize(params['kernel'])
    return {**params, 'kernel': integers, KERNEL_SCALE: scales}
  return {
    name: quantize_params(params[name], part, quantization) if isinstance(part, dict) else params[name]
    for name, part in target.items()
  }


def quantize_kernel(
  quantization: Quantization, scale_shape: tuple[int, ...], kernel: Float[Array, '...']
) -> tuple[Array, Float[Array, '...']]:
  """The integers of a kernel [*rows, *columns], in its shape, and their scales [groups, *columns]."""
  integers, scales = quantization.quantize(kernel.reshape(-1, math.prod(scale_shape[1:])))
  return integers.reshape(kernel.shape), scales.reshape(scale_shape)


def list_floating(run: Run) -> dict[str, int]:
  """The bytes of the parameters that are not in integers, the largest first; vectors and scales together."""
  sizes = collections.Counter()
  for path, x in leaves_by_path(run.params).items():
    if jnp.issubdtype(x.dtype, jnp.floating):
      is_vector = path.endswith(VECTORS)
      sizes['norms, biases and scales' if is_vector else path] += x.nbytes
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
