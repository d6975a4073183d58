"""What is refused of a run before anything is read or made: sizes, cadence, data against objective, mesh against batch."""

import dataclasses
import math
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping

from ml_collections import ConfigDict

from tfm.config.assemble import Experiment
from tfm.config.assemble.field_errors import require_one_of
from tfm.config.schema import default_config, parts
from tfm.decoding.beam import STOPPING
from tfm.errors import require, suggest
from tfm.kernels.dense import Dense
from tfm.models import flops
from tfm.parallel import mesh as meshes
from tfm.parallel import pipeline, sharding
from tfm.parallel.mesh_request import DivisibilityConstraint, MeshRequest, RangeConstraint, SliceConstraint
from tfm.shapes import PyTree
from tfm.training import state as states


def run(experiment: Experiment, devices: int | None) -> None:
  """Refuses what can be told without data or model: sizes, cadence, mesh against batch.

  Args:
    devices: None: nobody knows yet how many there will be, and the mesh is not looked at.
  """
  config = experiment.config
  t, o = config.training, config.optimizer
  require(config.data.length >= 1, f'config.data.length={config.data.length} must be at least 1')
  for field in (
    'steps',
    'batch_size',
    'gradient_accumulation',
    'log_every',
    'evaluate_every',
    'keep_checkpoints',
  ):
    require(t[field] >= 1, f'config.training.{field}={t[field]} must be at least 1')
  require(
    config.data.reader_threads >= 0,
    f'config.data.reader_threads={config.data.reader_threads} must be 0 or more',
  )
  for field in ('loss_chunk', 'evaluation_batches', 'profile'):
    require(t[field] >= 0, f'config.training.{field}={t[field]} must be 0 or more')
  require(
    t.recurrence_length >= 0 and (not t.recurrence_length or config.data.length % t.recurrence_length == 0),
    f'config.training.recurrence_length={t.recurrence_length} must be 0 (rows are read at once) or divide '
    f'config.data.length={config.data.length}',
  )
  require(
    not t.recurrence_length or experiment.objective.supports_recurrence,
    f'config.training.recurrence_length={t.recurrence_length} reads rows in pieces, and config.objective={config.objective!r} '
    'has them seen at once; set it to 0',
  )
  require(
    t.skip_spikes == 0 or t.skip_spikes > 1,
    f'config.training.skip_spikes={t.skip_spikes} must be 0.0 (no step is skipped) '
    'or more than 1 times the usual norm of the gradient, such as 3.0',
  )
  experiment.save_intervals
  require(
    not re.match(r'\w+:/', t.local_checkpoint_dir),
    f'config.training.local_checkpoint_dir={t.local_checkpoint_dir!r} is no folder of a machine; one on its disk, or in its '
    'memory, such as /dev/shm, would do',
  )
  default = default_config().training.save_local_every
  require(
    bool(t.local_checkpoint_dir) or t.save_local_every == default,
    f'config.training.save_local_every={t.save_local_every!r} is of checkpoints in config.training.local_checkpoint_dir, which is no folder: name one, or leave it '
    f'at {default!r}',
  )
  data(experiment)
  for field, least in (('beams', 1), ('max_extra_tokens', 0), ('average_checkpoints', 1)):
    value = config.decoding[field]
    require(value >= least, f'config.decoding.{field}={value} must be at least {least}')
  experiment.length_penalty
  require_one_of('decoding.stopping', config.decoding.stopping, STOPPING)
  require(
    t.keep_checkpoints >= config.decoding.average_checkpoints,
    f'config.training.keep_checkpoints={t.keep_checkpoints} checkpoints cannot be averaged by config.decoding.average_checkpoints='
    f'{config.decoding.average_checkpoints}; keep as many',
  )
  require(o.warmup >= 0, f'config.optimizer.warmup={o.warmup} must be 0 or more steps')
  require(o.clip >= 0, f'config.optimizer.clip={o.clip} must be 0 (no clipping) or more')
  require(o.learning_rate >= 0, f'config.optimizer.learning_rate={o.learning_rate} must be 0 or more')
  try:
    re.compile(o.no_decay)
  except re.error as error:
    raise ValueError(f'config.optimizer.no_decay={o.no_decay!r} is no regular expression: {error}') from None
  for axis, axes in config.rules.items():
    for name in axes.split():
      require(
        name in meshes.AXES,
        f'config.rules.{axis}={axes!r} names {name!r}, which is no mesh axis; {suggest(name, meshes.AXES)}',
      )
  require(
    t.batch_size % t.gradient_accumulation == 0,
    f'config.training.gradient_accumulation={t.gradient_accumulation} does not divide config.training.batch_size={t.batch_size}',
  )
  if devices is not None:
    mesh(experiment, devices)


def made(experiment: Experiment) -> None:
  """Refuses what nothing to train can be made of, whatever the data: optimizer, tokenizers, adapters, model."""
  config = experiment.config
  experiment.build_optimizer()
  experiment.tokenizer
  experiment.source_tokenizer
  require(
    experiment.lora is None or bool(config.init_from),
    f'config.lora.rank={config.lora.rank} adapts the parameters of a run, and config.init_from names none; name one',
  )
  experiment.build_model(vocab=1)


def mesh(experiment: Experiment, devices: int) -> None:
  """Refuses a mesh that the devices are not, or that does not cut the rows of a batch and the layers into equal parts, with the
  nearest one that works."""
  config = experiment.config
  slices(config, devices)
  request = MeshRequest(config.mesh.to_dict(), devices, tuple(needs(experiment)))
  try:
    request.sizes()
  except ValueError as error:
    # What is proposed must suit the parameters too. Tokens are not known yet, but that their rows are so many or a multiple.
    request = dataclasses.replace(
      request,
      constraints=(
        *request.constraints,
        *sharding.mesh_constraints(parameters(experiment), experiment.rules),
      ),
    )
    raise ValueError(f'{error}; {request.describe_nearest()}') from None


def divides(experiment: Experiment, devices: int) -> None:
  """Refuses a mesh that does not divide parameters, but for the rows of a vocabulary, which the data tell."""
  config = experiment.config
  boxed, rules = parameters(experiment), experiment.rules
  known = sharding.mesh_constraints(boxed, [(name, () if name == 'vocab' else axes) for name, axes in rules])
  request = MeshRequest(config.mesh.to_dict(), devices, (*needs(experiment), *known))
  try:
    request.sizes()
  except ValueError as error:
    raise ValueError(f'{error}; {request.describe_nearest()}') from None


def parameters(experiment: Experiment) -> PyTree:
  """Shapes and boxes of all parameters, as of a vocabulary of one token."""
  config = experiment.config
  # The kernel, of which there are none, may be one that is not here.
  model = flops.with_kernel(experiment.build_model(vocab=1, source_vocab=1), Dense())
  return states.abstract_state(lambda key: states.init_params(model, key, 1, config.data.length))


def slices(config: ConfigDict, devices: int) -> None:
  """Refuses what no mesh of so many devices mends."""
  meshes.validate_slice_count(config.slices.count, devices)
  meshes.validate_slice_axis(config.slices.axis)


def needs(experiment: Experiment) -> Iterator[DivisibilityConstraint]:
  """What a mesh must divide besides parameters."""
  config = experiment.config
  yield SliceConstraint(max(config.slices.count, 1), (config.slices.axis,))
  yield from rows(experiment)
  yield from layers(experiment)


def rows(experiment: Experiment) -> Iterator[DivisibilityConstraint]:
  """What a mesh must divide of a batch."""
  config = experiment.config
  t, rules = config.training, {name: tuple(axes.split()) for name, axes in config.rules.items()}
  cuts, said = t.gradient_accumulation, f'{t.gradient_accumulation} microbatches'
  if config.pipeline.microbatches:
    cuts, said = (
      cuts * config.pipeline.microbatches,
      said + f' of config.pipeline.microbatches={config.pipeline.microbatches}',
    )
    require(
      t.batch_size % cuts == 0,
      f'config.training.batch_size={t.batch_size} is not to be had in {said}; {cuts} or a multiple would do',
    )
  yield DivisibilityConstraint(
    t.batch_size // cuts,
    rules['batch'],
    lambda parts: (
      f'config.training.batch_size={t.batch_size} in {said} does not divide over the {parts} devices of '
      f'the mesh axes {config.rules.batch!r}; {cuts * parts} or a multiple would do'
    ),
  )
  packs, length = experiment.packing, rules['length']
  if not packs.has_fixed_batch_shape:
    yield DivisibilityConstraint(
      1,
      length,
      lambda parts: (
        f'config.data.packing={config.data.packing!r} makes rows of several lengths, which the mesh axes {config.rules.length!r} '
        f'cannot all cut into {parts} parts; another packing would do'
      ),
    )
  for field, x in experiment.objective.padding(config.data.length).items():
    if x.ndim == 1 and x.dtype.kind == 'i':
      yield DivisibilityConstraint(
        len(x),
        length,
        lambda parts, field=field, x=x: (
          f'config.data.length={config.data.length} gives rows of {len(x)} {field}, which do not divide over the {parts} devices '
          f'of the mesh axes {config.rules.length!r}'
        ),
      )
  if t.recurrence_length:
    yield DivisibilityConstraint(
      t.recurrence_length,
      length,
      lambda parts: (
        f'config.training.recurrence_length={t.recurrence_length} reads pieces that do not divide over the {parts} devices of the mesh axes '
        f'{config.rules.length!r}; {parts} or a multiple would do'
      ),
    )


def layers(experiment: Experiment) -> Iterator[DivisibilityConstraint]:
  """What the stages of a mesh must divide."""
  config = experiment.config
  repeats = config.pipeline.repeats
  for field, none in (('microbatches', 0), ('repeats', 1)):
    value = config.pipeline[field]
    require(value >= none, f'config.pipeline.{field}={value} must be {none} or more')
    if value > none:
      yield RangeConstraint(
        sys.maxsize,
        (pipeline.AXIS,),
        lambda stages, field=field, value=value, none=none: (
          f'config.pipeline.{field}={value} is of a mesh with stages, and mesh.stage=1 has none; leave it at {none}'
        ),
        least=2,
      )
  each, known = (
    config.training.batch_size // config.training.gradient_accumulation,
    config.pipeline.microbatches,
  )
  if repeats > 1 and known:
    yield RangeConstraint(
      known,
      (pipeline.AXIS,),
      lambda stages: (
        f'config.pipeline.microbatches={known} are fewer than {stages} stages, to the first of which they come back before it has had '
        f'them all, in {repeats} rounds (pipeline.repeats); {stages} or more would do'
      ),
    )
  elif repeats > 1:
    yield RangeConstraint(
      each,
      (*config.rules.batch.split(), pipeline.AXIS),
      lambda parts: (
        f'config.training.batch_size={config.training.batch_size} in {config.training.gradient_accumulation} microbatches is not a row for each '
        f'of {parts} stages and devices of the mesh axes {config.rules.batch!r}, which {repeats} rounds (pipeline.repeats) want; '
        f'{parts * config.training.gradient_accumulation} would do'
      ),
    )
  if not config.model.scan:
    yield DivisibilityConstraint(
      1,
      (pipeline.AXIS,),
      lambda stages: (
        f'config.model.scan=False stacks no layers, which {stages} stages could share; True would do'
      ),
    )
  if config.rules.layers.split() != [pipeline.AXIS]:
    yield DivisibilityConstraint(
      1,
      (pipeline.AXIS,),
      lambda stages: (
        f"config.rules.layers={config.rules.layers!r} gives {stages} stages no layers of their own; 'stage' would do"
      ),
    )
  for axis, axes in config.rules.items():
    if pipeline.AXIS in axes.split() and axis not in ('layers', 'vocab'):
      yield DivisibilityConstraint(
        1,
        (pipeline.AXIS,),
        lambda stages, axis=axis, axes=axes: (
          f'config.rules.{axis}={axes!r} cuts what each of {stages} stages has for itself over the stages; leave out '
          f'{pipeline.AXIS!r}, which can carry layers and vocab'
        ),
      )
  if config.training.recurrence_length:
    yield DivisibilityConstraint(
      1,
      (pipeline.AXIS,),
      lambda stages: (
        f'config.training.recurrence_length={config.training.recurrence_length} remembers earlier pieces in caches, which {stages} stages do not '
        'hand on; set it to 0'
      ),
    )
  for where, part in parts(config).items():
    if 'pattern' in part:
      turn = max(1, len(part.pattern))
      said = f'config.{where}.layers={part.layers}' + (f' in turns of {turn}' if turn > 1 else '')
      said += f', in {repeats} rounds (pipeline.repeats),' if repeats > 1 else ''
      turns = 1 if part.layers % (turn * repeats) else part.layers // (turn * repeats)
      # What is no whole number of turns in each round is so for any number of stages but one.
      yield DivisibilityConstraint(
        turns,
        (pipeline.AXIS,),
        lambda stages, said=said, each=turn * repeats, now=part.layers: (
          f'{said} does not divide over {stages} stages; {would(now, each * stages)} would do'
        ),
      )


def would(now: int, unit: int) -> str:
  """The multiples next to a number."""
  below = now // unit * unit
  return ' or '.join(str(n) for n in (below, below + unit) if n)


def schedule(config: ConfigDict, sizes: Mapping[str, int]) -> pipeline.Schedule | None:
  """When which stage of a mesh of these sizes computes what; None without stages."""
  if sizes[pipeline.AXIS] == 1:
    return None
  t = config.training
  return pipeline.plan_schedule(
    sizes[pipeline.AXIS],
    config.pipeline.repeats,
    config.pipeline.microbatches,
    t.batch_size // t.gradient_accumulation,
    math.prod(sizes[axis] for axis in config.rules.batch.split()),
  )


def folder(workdir: str | pathlib.Path) -> None:
  """Refuses a workdir that is a bucket: read as a path it would silently be a folder of another name."""
  require(
    not re.match(r'\w+:/', str(workdir)),
    f'--workdir={workdir} is no folder; mount the bucket, as tfm launch does for gs://… with '
    'gcsfuse, and name the folder',
  )


def seeds(experiment: Experiment, processes: int) -> None:
  """Refuses what several runs of one step cannot share."""
  config = experiment.config
  cut = {axis: size for axis, size in config.mesh.items() if size not in (1, -1)}
  require(
    not cut,
    f'config.mesh={cut} cuts one run over devices, and seeds that train together are themselves what is '
    'laid over them; leave it out, or train them one after another',
  )
  require(
    processes == 1,
    f'seeds train together in one process, and here are {processes}; train them one after another',
  )
  require(
    not config.training.local_checkpoint_dir,
    f'config.training.local_checkpoint_dir={config.training.local_checkpoint_dir!r} keeps one run near at hand, and these train '
    "together; set it to '', or train them one after another",
  )
  require(
    experiment.packing.has_fixed_batch_shape,
    f'config.data.packing={config.data.packing!r} makes batches of several shapes, which seeds cannot share; another '
    'packing would do, or train them one after another',
  )


# What documents may be, by their fields, in words, and a source and a packing of such.
KINDS = {
  ('text',): ('texts', "text('*.txt')", 'concat'),
  ('source', 'target'): ('pairs of source and target', 'parallel(src, tgt)', 'buckets'),
  ('text', 'label'): ('texts with a label', "labelled('*.tsv')", 'each'),
  ('image', 'label'): ('images with a label', 'digits', 'each'),
  ('text', 'answers'): ('texts with answers', 'copy', 'answered'),
  ('text', 'labels'): ('texts with a label for each word', "tagged('*.conll')", 'each'),
}


def data(experiment: Experiment) -> None:
  """Refuses a source, a packing and an objective that are not of one kind of document."""
  config = experiment.config
  d, aim, packs = config.data, experiment.objective, experiment.packing
  found = experiment.source.fields
  kinds, (_, example, _) = (
    ' or '.join(KINDS[fields][0] for fields in aim.document_kinds),
    KINDS[aim.document_kinds[0]],
  )
  require(
    found in aim.document_kinds,
    f'config.objective={config.objective!r} learns from {kinds}, and config.data.source='
    f'{d.source!r} gives {" and ".join(found)}; {example!r} would do',
  )
  kind, _, example = KINDS[found]
  require(
    found in packs.document_kinds,
    f'config.data.packing={d.packing!r} does not pack {kind}; {example!r} would do',
  )
  require(
    packs.supports_infinite or not experiment.source.is_infinite,
    f'config.data.source={d.source!r} has no end, and config.data.packing={d.packing!r} plans all of an epoch; '
    "'padded' would do",
  )
  require(
    packs.extra_fields == aim.required_fields,
    f'config.objective={config.objective!r} reads {" and ".join(sorted(aim.required_fields)) or "nothing"} of a row beside its '
    f'tokens, and config.data.packing={d.packing!r} gives {" and ".join(sorted(packs.extra_fields)) or "nothing"}; '
    f'{aim.suggested_packing!r} would do',
  )
  require(
    packs.layout in aim.supported_layouts,
    f'config.objective={config.objective!r} reads rows as one text, and config.data.packing={d.packing!r} puts '
    f'several into one; {aim.suggested_packing!r} would do',
  )
  default = default_config().data.tokenizer
  require(
    'image' not in found or d.tokenizer == default,
    f'config.data.tokenizer={d.tokenizer!r} is for texts, and config.data.source={d.source!r} gives images; leave '
    f'it at {default!r}',
  )
  require(
    'source' in found or d.source_tokenizer is None,
    f'config.data.source_tokenizer={d.source_tokenizer!r} is for pairs, and config.data.source={d.source!r} '
    'gives none; leave it out',
  )
