"""The run's log.txt and its first lines."""

import contextlib
import datetime
import importlib.metadata
import logging
import pathlib
import platform
from collections.abc import Iterator

import flax.linen as nn
import jax
from jax.sharding import Mesh

from tfm.config import mesh_constraints
from tfm.config.assemble import Experiment
from tfm.data.pipeline import ImageData, TextData
from tfm.shapes import PyTree
from tfm.training.progress_line import OnceFilter


def describe_run(
  experiment: Experiment, data: TextData | ImageData, params: PyTree, mesh: Mesh, step: int
) -> str:
  """The data, the model's size, the devices, the library versions, the compiler's settings, and the step to
  resume from, in lines.
  """
  config, steps = experiment.config, experiment.config.training.steps
  versions = ' '.join(f'{name} {importlib.metadata.version(name)}' for name in ('jax', 'flax', 'optax'))
  size = sum(x.size for x in jax.tree.leaves(nn.unbox(params)))
  process_count = f'{jax.process_count()} processes, ' if jax.process_count() > 1 else ''
  compiler = experiment.compiler.describe(jax.default_backend(), jax.device_count())
  schedule = mesh_constraints.pipeline_schedule(config, mesh.shape)
  return (
    f'{data}\n'
    f'model: {size:,} parameters, kernel {config.model.kernel}, {config.model.dtype}\n'
    f'devices: {process_count}{mesh.size} × {jax.devices()[0].device_kind}, mesh {dict(mesh.shape)}; '
    f'{versions}, '
    f'Python {platform.python_version()}'
    + (f'\ncompiler: {compiler}' if compiler else '')
    + (f'\npipeline: {schedule}' if schedule else '')
    + (f'\nresuming from step {step}' if step else '')
    + (
      f', the last of config.training.steps={step}: nothing is left to train'
      if step and step == steps
      else ''
    )
  )


@contextlib.contextmanager
def log_to_file(workdir: pathlib.Path, first_lines: str) -> Iterator[None]:
  """Appends `first_lines`, and all that the logger `tfm` logs in this block, to log.txt in `workdir`."""
  with (workdir / 'log.txt').open('a', encoding='utf-8') as file:
    file.write(f'\n{datetime.datetime.now():%Y-%m-%d %H:%M:%S}\n{first_lines}\n')
  logger, handler = logging.getLogger('tfm'), logging.FileHandler(workdir / 'log.txt', encoding='utf-8')
  handler.addFilter(OnceFilter())
  level = logger.level
  logger.setLevel(logging.DEBUG)
  logger.addHandler(handler)
  try:
    yield
  finally:
    logger.removeHandler(handler)
    logger.setLevel(level)
    handler.close()
