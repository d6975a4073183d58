"""Rejects invalid configs before anything is read or built: sizes, cadence, data and objective, mesh and
batch.
"""

import pathlib
import re

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from tfm.config import mesh_constraints
from tfm.config.assemble import DTYPES, Experiment
from tfm.config.field_errors import compile_pattern
from tfm.config.schema import default_config, validate_fields
from tfm.errors import require, suggest
from tfm.kernels.dense import Dense
from tfm.models import flops, memory
from tfm.models.remat import NamePolicy, list_names
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.parallel.host_memory import HOST_MEMORY, has_host_memory
from tfm.parallel.sharding import Parameter
from tfm.shapes import PyTree
from tfm.training import state as states
from tfm.training.gradient_transforms import path_name
from tfm.training.progress_line import print_status
from tfm.training.state import State


MIN_CLIP = 1e-6  # of the gradient's norm


def validate_run(experiment: Experiment, devices: int | None) -> None:
  """Raises ValueError for what is invalid whatever the data and the model.

  Args:
    devices: None: not known yet; the mesh is then not checked.
  """
  validate_fields(experiment.config)
  validate_training(experiment)
  validate_documents(experiment)
  validate_decoding(experiment)
  validate_optimizer(experiment)
  for axis, axes in experiment.config.rules.items():
    for name in axes.split():
      require(
        name in meshes.AXES,
        f'config.rules.{axis}={axes!r} names {name!r}, not a mesh axis; {suggest(name, meshes.AXES)}',
      )
  t = experiment.config.training
  require(
    t.batch_size % t.gradient_accumulation == 0,
    f'config.training.gradient_accumulation={t.gradient_accumulation} does not divide '
    f'config.training.batch_size={t.batch_size}',
  )
  if devices is not None:
    mesh_constraints.validate_mesh(experiment, devices)


def validate_training(experiment: Experiment) -> None:
  """Raises ValueError for sizes and cadences out of range."""
  config = experiment.config
  t, length = config.training, config.data.length
  require(
    not t.recurrence_length or length % t.recurrence_length == 0,
    f'config.training.recurrence_length={t.recurrence_length} must be 0 (no recurrence) or divide '
    f'config.data.length={length}',
  )
  require(
    not t.recurrence_length or experiment.objective.supports_recurrence,
    f'config.training.recurrence_length={t.recurrence_length} reads rows in segments, which '
    f'config.objective={config.objective!r} does not support; set it to 0',
  )
  require(
    not t.recurrence_length or config.decoding.cache == 'full',
    f'config.training.recurrence_length={t.recurrence_length} passes gradients through the cache, which '
    f"config.decoding.cache={config.decoding.cache!r} rounds; train with 'full'",
  )
  require(
    t.gradient_accumulation == 1 or experiment.objective.supports_accumulation,
    f'config.training.gradient_accumulation={t.gradient_accumulation} divides the batch, and '
    f'config.objective={config.objective!r} compares all of its rows with each other; set it to 1, and '
    'divide the batch among more devices, or recompute with config.model.remat',
  )
  require(
    not experiment.objective.reference_workdir or config.mesh.stage == 1,
    f'config.mesh.stage={config.mesh.stage} divides the layers of one model, and '
    f'config.objective={config.objective!r} reads two; use config.mesh.fsdp',
  )
  require(
    not (experiment.quantization and experiment.quantization.calibrated),
    f'config.model.quantization={config.model.quantization!r} has scales of inputs that tfm quantize '
    'measures after training; leave out calibrated',
  )
  require(
    not (experiment.quantization and experiment.quantization.stored),
    f'config.model.quantization={config.model.quantization!r} stores integers, which have no gradient; leave '
    'out stored, and tfm quantize stores them after training',
  )
  require(
    t.gradient_reduction in ('float32', config.model.dtype),
    f'config.training.gradient_reduction={t.gradient_reduction!r} needs products of that type, and '
    f"config.model.dtype={config.model.dtype!r}; use 'float32'",
  )
  require(
    t.skip_spikes == 0 or t.skip_spikes > 1,
    f'config.training.skip_spikes={t.skip_spikes} must be 0.0 (skips nothing) or a factor above 1 of the '
    'usual gradient norm, such as 3.0',
  )
  require(
    t.profile <= t.steps,
    f'config.training.profile={t.profile} exceeds config.training.steps={t.steps}; profile a few steps',
  )
  if config.optimizer.warmup >= max(t.steps, 2):  # a warm-up of one step begins at the peak
    print_status(
      f'note: config.optimizer.warmup={config.optimizer.warmup} is not below '
      f'config.training.steps={t.steps}: the learning rate rises to the last step'
    )
  # parsed here, so that an invalid one is reported early
  experiment.save_intervals, experiment.stop_rule, experiment.compiler, experiment.sinks
  directory = t.local_checkpoint_dir
  require(
    not re.match(r'\w+:/', directory),
    f'config.training.local_checkpoint_dir={directory!r} is not a local folder; use one on a disk of the '
    'machine, or in its memory, such as /dev/shm',
  )
  default = default_config().training.save_local_every
  require(
    bool(directory) or t.save_local_every == default,
    f'config.training.save_local_every={t.save_local_every!r} has no effect without '
    f'config.training.local_checkpoint_dir; set that, or leave it at {default!r}',
  )


def validate_sinks(experiment: Experiment) -> None:
  """Raises ValueError for a sink whose package is not installed, or cannot be used as its spec says."""
  for text, sink in zip(experiment.config.training.sinks, experiment.sinks):
    try:
      sink.import_package()
    except ValueError as error:
      raise ValueError(f'config.training.sinks={text!r}: {error}') from error


def validate_decoding(experiment: Experiment) -> None:
  """Raises ValueError for decoding settings out of range."""
  config = experiment.config
  experiment.beam_search  # built here, so that an invalid penalty is reported early
  kept, averaged = config.training.keep_checkpoints, config.decoding.average_checkpoints
  require(
    kept >= averaged,
    f'config.training.keep_checkpoints={kept} is less than config.decoding.average_checkpoints={averaged}; '
    f'keep at least {averaged}',
  )


def validate_optimizer(experiment: Experiment) -> None:
  """Raises ValueError for optimizer settings out of range."""
  o = experiment.config.optimizer
  require(
    o.clip == 0 or o.clip >= MIN_CLIP,
    f'config.optimizer.clip={o.clip} would stop training; use 0 (no clipping), or {MIN_CLIP} or more',
  )
  compile_pattern('optimizer.no_decay', o.no_decay)


def validate_parts(experiment: Experiment) -> None:
  """Raises ValueError if the optimizer, a tokenizer, the adapters or the model cannot be built, whatever the
  data.
  """
  experiment.optimizer, experiment.tokenizer, experiment.source_tokenizer  # built here to report errors early
  require(
    experiment.lora is None or bool(experiment.config.init_from),
    f'config.lora.rank={experiment.config.lora.rank} adapts the parameters of another run; set '
    'config.init_from to its folder',
  )
  require(
    not experiment.config.init_layers or bool(experiment.config.init_from),
    f'config.init_layers={experiment.config.init_layers} are layers of another run; set config.init_from '
    'to its folder',
  )
  for field, default in default_config().lora.items():
    value = experiment.config.lora[field]
    require(
      experiment.lora is not None or value == default,
      f'config.lora.{field}={value!r} has no effect without config.lora.rank; set that, or leave it '
      f'at {default!r}',
    )
  experiment.build_model(vocab=1)
  validate_remat(experiment)


def validate_remat(experiment: Experiment) -> None:
  """Raises ValueError for names in config.model.remat that nothing in a block of the model has."""
  policy, length = experiment.remat, experiment.config.data.length
  if not isinstance(policy, NamePolicy):
    return
  model = flops.with_kernel(experiment.build_model(vocab=1, source_vocab=1), Dense())
  traced = jax.make_jaxpr(lambda key: states.init_params(model, key, 1, length))(jax.random.key(0))
  known = sorted(set(list_names(traced.jaxpr)))
  for name in policy.saved + policy.offloaded:
    require(
      name in known,
      f'config.model.remat={experiment.config.model.remat!r} names {name!r}, which nothing in a block has; '
      f'{suggest(name, known)}',
    )


def validate_device(experiment: Experiment, device: jax.Device, devices: int) -> None:
  """Raises ValueError for what such a device cannot do: options of another compiler, memory of a host."""
  experiment.compiler.resolve(device.platform, devices)
  for field in list_offloads(experiment):
    require(
      has_host_memory(device),
      f'{field} needs memory of kind {HOST_MEMORY!r}, which JAX does not have for this {device.platform}; '
      'leave it out',
    )


def list_offloads(experiment: Experiment) -> list[str]:
  """The fields, with their values, that move arrays to host memory."""
  config, policy = experiment.config, experiment.remat
  offloads = {
    f'config.model.remat={config.model.remat!r}': isinstance(policy, NamePolicy) and bool(policy.offloaded),
    f'config.optimizer.offload={config.optimizer.offload}': config.optimizer.offload,
  }
  return [field for field, is_set in offloads.items() if is_set]


def validate_parameter_patterns(experiment: Experiment, params: PyTree) -> None:
  """Raises ValueError for a regular expression that selects none of a model's parameters, or freezes all.

  Args:
    params: of the model, boxed or not.
  """
  leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: isinstance(x, Parameter))
  paths, fields = [path_name(path) for path, _ in leaves], experiment.config.optimizer
  names = sorted({name for path in paths for name in path.split('/')})
  for field in ('frozen', 'no_decay'):
    pattern = fields[field]
    require(
      pattern in ('', default_config().optimizer[field]) or any(re.search(pattern, path) for path in paths),
      f'config.optimizer.{field}={pattern!r} matches no parameter; {suggest(pattern, names)}',
    )
  require(
    any(experiment.optimizer.is_trainable(path) for path in paths),
    f'config.optimizer.frozen={fields.frozen!r} matches every parameter, so nothing would be trained',
  )


def validate_state(
  experiment: Experiment, state: State, mesh: Mesh | AbstractMesh, runs: int = 1, capacity: int | None = None
) -> None:
  """Raises ValueError if a regular expression of the config selects none of a state's parameters, if the mesh
  does not divide one, or if its devices cannot hold the state and a layer's input.

  Args:
    state: of one run, abstract and boxed.
    runs: number of runs that train together, each on one device.
    capacity: bytes of one device; None: as the attached ones have.
  """
  validate_parameter_patterns(experiment, state.params)
  constraints = tuple(mesh_constraints.list_constraints(experiment))
  frozen = dict(reference=state.reference.params) if state.reference else {}
  sharding.validate_divisibility(state.params | frozen, mesh, experiment.rules, constraints)
  config = experiment.config
  t, m = config.training, config.model
  hidden = t.batch_size // t.gradient_accumulation * config.data.length * m.width // mesh.size
  # Every policy keeps the inputs of the layers for a backward pass through them, if it does not offload them.
  keeps_inputs = not (
    config.optimizer.frozen or config.lora.rank or t.recurrence_length or 'offload' in m.remat
  )
  count, name = (m.layers, 'inputs of the layers') if keeps_inputs else (1, 'hidden states of a layer')
  memory.require_capacity(
    {
      'states': -(-runs // mesh.size) * memory.on_device(experiment.on_device(state), mesh, experiment.rules),
      name: count * hidden * jnp.dtype(DTYPES[m.dtype]).itemsize,
    },
    'use a smaller model, config.data.length or config.training.batch_size, or more devices (config.mesh)',
    capacity,
  )


def validate_workdir(workdir: str | pathlib.Path) -> None:
  """Raises ValueError for a bucket, which as a path would name a local folder."""
  require(
    not re.match(r'\w+:/', str(workdir)),
    f'--workdir={workdir} is not a folder; mount the bucket, as tfm launch does with gcsfuse, and '
    'name the folder',
  )


def validate_ensemble(experiment: Experiment, processes: int) -> None:
  """Raises ValueError for a config whose runs cannot be trained in one vmapped step."""
  config = experiment.config
  sharded = {axis: size for axis, size in config.mesh.items() if size not in (1, -1)}
  require(
    not sharded,
    f'config.mesh={sharded} shards a single run, and an ensemble distributes whole runs over devices; leave '
    'config.mesh out, or train the runs one after another',
  )
  require(
    processes == 1,
    f'an ensemble trains in one process, and there are {processes}; train the runs one after another',
  )
  directory = config.training.local_checkpoint_dir
  require(
    not directory,
    f"config.training.local_checkpoint_dir={directory!r} is not supported by ensembles; set it to '', or "
    'train the runs one after another',
  )
  require(
    not config.optimizer.offload,
    'config.optimizer.offload=True is not supported by ensembles; leave it out, or train the runs one after '
    'another',
  )
  require(
    experiment.packing.has_fixed_batch_shape,
    f'config.data.packing={config.data.packing!r} makes batches of several shapes, which an ensemble cannot '
    'share; use another packing, or train the runs one after another',
  )


# Document fields → (description, an example source, an example packing).
DOCUMENT_KINDS = {
  ('text',): ('texts', "text('*.txt')", 'concat'),
  ('source', 'target'): ('pairs of source and target', 'parallel(src, tgt)', 'buckets'),
  ('prompt', 'chosen', 'rejected'): (
    'prompts with a chosen and a rejected continuation',
    'preferences("*.jsonl")',
    'preferences',
  ),
  ('text', 'label'): ('texts with a label', "labelled('*.tsv')", 'each'),
  ('image', 'label'): ('images with a label', 'digits', 'each'),
  ('image', 'text', 'label'): ('images with a text and a label', "captions('digits')", 'each'),
  ('text', 'answers'): ('texts with answers', 'copy', 'answered'),
  ('text', 'labels'): ('texts with a label for each word', "tagged('*.conll')", 'each'),
}


def validate_documents(experiment: Experiment) -> None:
  """Raises ValueError unless source, packing and objective agree on the kind of documents."""
  config = experiment.config
  d, source, packing, objective = config.data, experiment.source, experiment.packing, experiment.objective
  for name, text in d.sources.items():
    require(
      not text or name in source.parts,
      f'config.data.sources.{name}={text!r} is not in config.data.source={d.source!r}; name it there, or set '
      "it to ''",
    )
  accepted = ' or '.join(DOCUMENT_KINDS[fields][0] for fields in objective.document_kinds)
  _, example_source, _ = DOCUMENT_KINDS[objective.document_kinds[0]]
  require(
    source.fields in objective.document_kinds,
    f'config.objective={config.objective!r} trains on {accepted}, and config.data.source={d.source!r} has '
    f'{" and ".join(source.fields)}; use a source such as {example_source!r}',
  )
  kind, _, example_packing = DOCUMENT_KINDS[source.fields]
  require(
    source.fields in packing.document_kinds,
    f'config.data.packing={d.packing!r} does not pack {kind}; use a packing such as {example_packing!r}',
  )
  require(
    packing.supports_infinite or not source.is_infinite,
    f'config.data.source={d.source!r} is infinite, and config.data.packing={d.packing!r} needs epochs; use '
    "'padded'",
  )
  require(
    packing.has_fixed_batch_shape or not source.parts,
    f'config.data.packing={d.packing!r} makes batches of several shapes, and config.data.source={d.source!r} '
    "mixes sources within a batch; use 'first_fit' or 'padded'",
  )
  needed, provided = (
    ' and '.join(sorted(fields)) or 'nothing' for fields in (objective.required_fields, packing.extra_fields)
  )
  require(
    packing.extra_fields == objective.required_fields,
    f'config.objective={config.objective!r} needs {needed} besides the tokens of a row, and '
    f'config.data.packing={d.packing!r} provides {provided}; use {objective.suggested_packing!r}',
  )
  require(
    packing.layout in objective.supported_layouts,
    f'config.objective={config.objective!r} needs one text per row, and '
    f'config.data.packing={d.packing!r} puts several into a row; use {objective.suggested_packing!r}',
  )
  default = default_config().data.tokenizer
  require(
    'image' not in source.fields or 'text' in source.fields or d.tokenizer == default,
    f'config.data.tokenizer={d.tokenizer!r} has no effect on the images of config.data.source={d.source!r}; '
    f'leave it at {default!r}',
  )
  require(
    'source' in source.fields or d.source_tokenizer is None,
    f'config.data.source_tokenizer={d.source_tokenizer!r} needs pairs; config.data.source={d.source!r} has '
    'none; leave it out',
  )
