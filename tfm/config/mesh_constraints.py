"""What a mesh must divide: rows, tokens, layers and parameters of a run."""

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping

from ml_collections import ConfigDict

import tfm.mixers
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.assemble.images import build_patches, count_patches
from tfm.config.schema import parts
from tfm.errors import require
from tfm.kernels.dense import Dense
from tfm.mixers.protocol import Mixer
from tfm.models import flops
from tfm.parallel import mesh as meshes
from tfm.parallel import pipeline_parallelism, sharding, ulysses
from tfm.parallel.mesh_request import DivisibilityConstraint, MeshRequest, RangeConstraint, SliceConstraint
from tfm.shapes import PyTree
from tfm.training import state as states


def validate_mesh(experiment: Experiment, devices: int) -> None:
  """Raises ValueError, with the nearest valid mesh, for a mesh that does not match the devices, or does not
  divide the rows of a batch or the layers."""
  config = experiment.config
  validate_slices(config, devices)
  request = MeshRequest(config.mesh.to_dict(), devices, tuple(list_constraints(experiment)))
  try:
    request.sizes()
  except ValueError as error:
    # The proposed mesh must also divide the parameters. The vocabulary is not known yet.
    request = dataclasses.replace(
      request,
      constraints=(
        *request.constraints,
        *sharding.mesh_constraints(abstract_parameters(experiment), experiment.rules),
      ),
    )
    raise ValueError(f'{error}; {request.describe_nearest()}') from None


def validate_parameters(experiment: Experiment, devices: int) -> None:
  """Raises ValueError for a mesh that does not divide a parameter, except along the vocabulary, whose size
  depends on the data."""
  rules = [(name, () if name == 'vocab' else axes) for name, axes in experiment.rules]
  constraints = (
    *list_constraints(experiment),
    *sharding.mesh_constraints(abstract_parameters(experiment), rules),
  )
  request = MeshRequest(experiment.config.mesh.to_dict(), devices, constraints)
  try:
    request.sizes()
  except ValueError as error:
    raise ValueError(f'{error}; {request.describe_nearest()}') from None


def abstract_parameters(experiment: Experiment) -> PyTree:
  """Shapes and logical axes of all parameters, for a vocabulary of one token."""
  # Kernels have no parameters, and the configured one may not be available on this machine.
  model = flops.with_kernel(experiment.build_model(vocab=1, source_vocab=1), Dense())
  return states.abstract_state(lambda key: states.init_params(model, key, 1, experiment.config.data.length))


def validate_slices(config: ConfigDict, devices: int) -> None:
  """Raises ValueError for slices that no mesh over this number of devices allows."""
  meshes.validate_slice_count(config.slices.count, devices)
  meshes.validate_slice_axis(config.slices.axis)


def list_constraints(experiment: Experiment) -> Iterator[DivisibilityConstraint]:
  """What a mesh must divide, parameters excepted."""
  slices = experiment.config.slices
  yield SliceConstraint(max(slices.count, 1), (slices.axis,))
  yield from batch_constraints(experiment)
  yield from head_constraints(experiment)
  yield from layer_constraints(experiment)


def batch_constraints(experiment: Experiment) -> Iterator[DivisibilityConstraint]:
  """What a mesh must divide in a batch: rows and tokens."""
  config = experiment.config
  t, rules = config.training, {name: tuple(axes.split()) for name, axes in config.rules.items()}
  count, described = t.gradient_accumulation, f'{t.gradient_accumulation} microbatches'
  if config.pipeline.microbatches:
    count *= config.pipeline.microbatches
    described += f' of config.pipeline.microbatches={config.pipeline.microbatches}'
    require(
      t.batch_size % count == 0,
      f'config.training.batch_size={t.batch_size} is not divisible by {described}; use a multiple of {count}',
    )
  yield DivisibilityConstraint(
    t.batch_size // count,
    rules['batch'],
    lambda shards: (
      f'config.training.batch_size={t.batch_size} in {described} does not divide over the {shards} '
      f'devices of the mesh axes {config.rules.batch!r}; use a multiple of {count * shards}'
    ),
  )
  length_axes = rules['length']
  if not experiment.packing.has_fixed_batch_shape:
    yield DivisibilityConstraint(
      1,
      length_axes,
      lambda shards: (
        f'config.data.packing={config.data.packing!r} makes rows of several lengths, which the mesh axes '
        f'{config.rules.length!r} cannot split into {shards} shards; use another packing'
      ),
    )
  for field, x in experiment.objective.padding_row(config.data.length).items():
    if x.ndim == 1 and x.dtype.kind == 'i':
      yield DivisibilityConstraint(
        len(x),
        length_axes,
        lambda shards, field=field, x=x: (
          f'config.data.length={config.data.length} gives rows of {len(x)} {field}, which do not divide over '
          f'the {shards} devices of the mesh axes {config.rules.length!r}'
        ),
      )
  if config.model.architecture == 'image_text':
    tokens = count_patches(build_patches(experiment)) + config.model.class_tokens
    yield DivisibilityConstraint(
      tokens,
      length_axes,
      lambda shards: (
        f'config.model.patch={config.model.patch} gives images of {tokens} tokens, which do not divide over '
        f'the {shards} devices of the mesh axes {config.rules.length!r}'
      ),
    )
  if t.recurrence_length:
    yield DivisibilityConstraint(
      t.recurrence_length,
      length_axes,
      lambda shards: (
        f'config.training.recurrence_length={t.recurrence_length} does not divide over the {shards} '
        f'devices of the mesh axes {config.rules.length!r}; use a multiple of {shards}'
      ),
    )


def head_constraints(experiment: Experiment) -> Iterator[DivisibilityConstraint]:
  """What a mesh must divide that exchanges tokens for heads during attention."""
  config = experiment.config
  if ulysses.AXIS not in config.rules.length.split():
    return
  axes = *config.rules.heads.split(), ulysses.AXIS
  for where, part in parts(config).items():
    mixer = spec.find_variant(spec.parse(part.mixer).name, tfm.mixers, Mixer, part.mixer)
    if any(field.name == 'kernel' for field in dataclasses.fields(mixer)):
      yield ulysses.HeadConstraint(
        part.heads,
        axes,
        lambda shards, where=where, heads=part.heads: (
          f'config.{where}.heads={heads}: {ulysses.indivisible_heads_message(heads, axes, shards)}'
        ),
      )


def layer_constraints(experiment: Experiment) -> Iterator[DivisibilityConstraint]:
  """What the pipeline stages of a mesh must divide."""
  config = experiment.config
  repeats = config.pipeline.repeats
  for field, default in (('microbatches', 0), ('repeats', 1)):
    value = config.pipeline[field]
    require(value >= default, f'config.pipeline.{field}={value} must be {default} or more')
    if value > default:
      yield RangeConstraint(
        sys.maxsize,
        (pipeline_parallelism.AXIS,),
        lambda stages, field=field, value=value, default=default: (
          f'config.pipeline.{field}={value} needs a mesh with stages, and config.mesh.stage=1 has none; '
          f'leave it at {default}'
        ),
        least=2,
      )
  accumulation, microbatches = config.training.gradient_accumulation, config.pipeline.microbatches
  if repeats > 1 and microbatches:
    yield RangeConstraint(
      microbatches,
      (pipeline_parallelism.AXIS,),
      lambda stages: (
        f'config.pipeline.microbatches={microbatches} is less than {stages} stages, and '
        f'config.pipeline.repeats={repeats} needs one microbatch per stage; use {stages} or more'
      ),
    )
  elif repeats > 1:
    yield RangeConstraint(
      config.training.batch_size // accumulation,
      (*config.rules.batch.split(), pipeline_parallelism.AXIS),
      lambda shards: (
        f'config.training.batch_size={config.training.batch_size} in {accumulation} microbatches gives fewer '
        f'rows than the {shards} stages and devices of the mesh axes {config.rules.batch!r}, and '
        f'config.pipeline.repeats={repeats} needs one row for each; use {shards * accumulation} or more'
      ),
    )
  if not config.model.scan:
    yield _unsharded_by_stages(
      lambda stages: (
        f'config.model.scan=False does not stack layers, so {stages} stages cannot share them; set it to True'
      )
    )
  if config.rules.layers.split() != [pipeline_parallelism.AXIS]:
    yield _unsharded_by_stages(
      lambda stages: (
        f'config.rules.layers={config.rules.layers!r} does not distribute the layers over {stages} stages; '
        "set it to 'stage'"
      )
    )
  for axis, axes in config.rules.items():
    if pipeline_parallelism.AXIS in axes.split() and axis not in ('layers', 'vocab'):
      yield _unsharded_by_stages(
        lambda stages, axis=axis, axes=axes: (
          f'config.rules.{axis}={axes!r} splits over {stages} stages what each needs completely; remove '
          f'{pipeline_parallelism.AXIS!r}, which can only shard layers and vocab'
        )
      )
  if config.training.recurrence_length:
    yield _unsharded_by_stages(
      lambda stages: (
        f'config.training.recurrence_length={config.training.recurrence_length} needs caches, which {stages} '
        'stages do not pass on; set it to 0'
      )
    )
  for where, part in parts(config).items():
    if 'pattern' in part:
      period = max(1, len(part.pattern)) * repeats
      described = f'config.{where}.layers={part.layers}'
      described += f' in repetitions of {len(part.pattern)} blocks' if len(part.pattern) > 1 else ''
      described += f', in config.pipeline.repeats={repeats} rounds,' if repeats > 1 else ''
      # Layers that are not whole periods divide over one stage only.
      yield DivisibilityConstraint(
        1 if part.layers % period else part.layers // period,
        (pipeline_parallelism.AXIS,),
        lambda stages, described=described, period=period, layers=part.layers: (
          f'{described} does not divide over {stages} stages; '
          f'use {nearest_multiples(layers, period * stages)}'
        ),
      )


def _unsharded_by_stages(describe) -> DivisibilityConstraint:
  """Allows a single stage only."""
  return DivisibilityConstraint(1, (pipeline_parallelism.AXIS,), describe)


def nearest_multiples(value: int, unit: int) -> str:
  """The multiples of `unit` next to a value, above 0."""
  below = value // unit * unit
  return ' or '.join(str(multiple) for multiple in (below, below + unit) if multiple)


def pipeline_schedule(config: ConfigDict, sizes: Mapping[str, int]) -> pipeline_parallelism.Schedule | None:
  """Which stage computes what and when, on a mesh of these sizes; None without stages."""
  if sizes[pipeline_parallelism.AXIS] == 1:
    return None
  return pipeline_parallelism.plan_schedule(
    sizes[pipeline_parallelism.AXIS],
    config.pipeline.repeats,
    config.pipeline.microbatches,
    config.training.batch_size // config.training.gradient_accumulation,
    math.prod(sizes[axis] for axis in config.rules.batch.split()),
  )
