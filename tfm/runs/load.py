"""Loading a trained run from its working directory, and evaluating it."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

import tfm.kernels
from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.field_errors import build_field
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import parts
from tfm.data import cache, pipeline
from tfm.data.documents import INFINITE
from tfm.data.pipeline import ImageData, TextData
from tfm.data.special_tokens import base_tokenizer, extend_tokenizer
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding.translate import Translation, translate
from tfm.decoding.unroll_layers import unroll_layers
from tfm.errors import require
from tfm.evaluation import length_extrapolation
from tfm.kernels.protocol import Kernel
from tfm.models.trunk import Trunk
from tfm.objectives.classification import CONFUSION_MATRIX
from tfm.objectives.protocol import Reference
from tfm.parallel import mesh as meshes
from tfm.parallel import processes, sharding
from tfm.parallel.mesh import current_platform
from tfm.runs.init_from import abstract_params, build_model, load_tokenizers, restore_params
from tfm.runs.measure_split import build_measure_fn, summarize_totals
from tfm.runs.reference import load_reference
from tfm.runs.summary import require_run
from tfm.shapes import Int, PyTree
from tfm.training import checkpoint
from tfm.training.progress_line import print_status


# Fields that may differ when a trained run is read, besides kernels.
MESH_FIELDS = 'mesh.', 'slices.', 'rules.'


@dataclasses.dataclass(frozen=True)
class Run:
  """A trained model with what is needed to evaluate it or to generate.

  Attributes:
    experiment: of the resolved config.
    model, params: the model of the experiment and its parameters.
    tokenizer: with the special tokens of the objective; None for images.
    mesh, rules: where the parameters live.
    step: of the checkpoint.
    corpus: hash of the documents it was trained on; '' for an imported model.
    source_tokenizer: of the source of pairs, if it has its own; else None.
    published: the metadata of `tfm import`, or None.
    reference: the run and the step with whose model the objective compares, or None.
  """

  experiment: Experiment
  model: Trunk
  params: PyTree
  tokenizer: Tokenizer | None
  mesh: Mesh
  rules: sharding.Rules
  step: int
  corpus: str
  source_tokenizer: Tokenizer | None = None
  published: Mapping[str, Any] | None = None
  reference: Mapping[str, Any] | None = None

  @property
  def config(self) -> ConfigDict:
    return self.experiment.config

  def require_generation(self) -> None:
    """Raises ValueError for a model whose next-token logits its objective does not train."""
    require(
      not self.experiment.objective.reconstructs,
      f'a model of config.objective={self.config.objective!r} continues no text; use tfm evaluate',
    )

  def encode(self, text: str) -> Int[np.ndarray, 'T']:
    """The tokens of a text as the model reads them in training: a decoder after the token that begins a text,
    an encoder or an image-text model also before the one that ends it; an encoder-decoder as a source.
    """
    tokenizer = self.tokenizer
    if self.config.model.architecture == 'encoder_decoder':
      return (self.source_tokenizer or tokenizer).source_ids(text)
    ends = [tokenizer.eos_id] * (self.config.model.architecture in ('encoder', 'image_text'))
    return np.array([tokenizer.bos_id, *tokenizer.encode(text), *ends], np.int32)


def load(
  workdir: str,
  step: str = 'last',
  average: int | None = None,
  override: Callable[[ConfigDict], ConfigDict] = lambda config: config,
) -> Run:
  """Loads a run from its checkpoint at step 'last', 'best' or a number.

  Args:
    average: number of checkpoints up to that one to average; None for config.decoding.average_checkpoints.
    override: config of the run → config to use; it may change the kernels, the mesh and its rules alone.

  The parameters are read into their shardings on the mesh: one that `override` sets, or that of the run if
  it is of the devices here, or else `data=-1`, which replicates them, as a notice says.

  Raises:
    ValueError: if there is no run or no such checkpoint, if a kernel of the config is not available here, if
      the mesh is not one of the devices here, or for another override.
  """
  require_run(workdir)
  workdir = pathlib.Path(workdir)
  checkpoints = checkpoint.Checkpoints(workdir)
  number = checkpoints.find_step(step)
  metadata = checkpoints.read_metadata(number)
  config = resolve_config(complete(metadata['config']))
  tokenizer, source_tokenizer = load_tokenizers(metadata)
  trained, config = config, override_config(config, override)
  experiment, mesh = Experiment(config), make_mesh(trained, config)
  model = build_model(experiment, tokenizer, source_tokenizer)
  average = config.decoding.average_checkpoints if average is None else average
  require(average >= 1, f'--average={average} must be at least 1')
  boxed = abstract_params(experiment, model)
  sharding.validate_divisibility(boxed, mesh, experiment.rules)
  params = restore_params(checkpoints, number, experiment, model, mesh, experiment.rules, average)
  checkpoints.close()
  return Run(
    experiment=experiment,
    model=model,
    params=params,
    tokenizer=extend_tokenizer(tokenizer, experiment.objective.special_tokens),
    mesh=mesh,
    rules=experiment.rules,
    step=number,
    corpus=metadata['corpus'],
    source_tokenizer=source_tokenizer,
    published=metadata.get('published'),
    reference=metadata.get('reference'),
  )


def override_config(config: ConfigDict, override: Callable[[ConfigDict], ConfigDict]) -> ConfigDict:
  """The config with other kernels, or another mesh or rules.

  Raises:
    ValueError: if another field changes, or a kernel is not available on this platform.
  """
  changed = resolve_config(override(config.copy_and_resolve_references()))
  for line in list_differences(config.to_dict(), changed.to_dict()):
    field = line.partition(':')[0]
    require(
      field.endswith('.kernel') or field.startswith(MESH_FIELDS),
      f'--config.{field} cannot be set for a trained run; only kernels and the mesh can, such as '
      '--config.model.kernel=auto or --config.mesh.data=1 --config.mesh.fsdp=-1',
    )
  for where, part in parts(changed).items():
    kernel = build_field(f'{where}.kernel', spec.build, part.kernel, tfm.kernels, Kernel)
    reason = kernel.unavailable_reason(current_platform())
    require(
      not reason,
      f'config.{where}.kernel={part.kernel!r} of the run cannot be used here: {reason}; '
      f'add --config.{where}.kernel=auto',
    )
  return changed


def make_mesh(trained: ConfigDict, config: ConfigDict) -> Mesh:
  """The mesh for reading a run: that of its config if it is of the devices here, or if it was set for them.

  Args:
    trained, config: the config of the run, and the same with overrides.

  Raises:
    ValueError: for a mesh that was set and is not one of the devices here, or has pipeline stages.
  """
  is_set = any(trained[name] != config[name] for name in ('mesh', 'slices'))
  try:
    mesh = meshes.from_config(config)
    require(
      mesh.shape['stage'] == 1,
      f'config.mesh.stage={mesh.shape["stage"]}: only training has pipeline stages; use config.mesh.fsdp',
    )
    return mesh
  except ValueError as error:
    if is_set:
      raise
    print_status(
      f'the mesh of the training does not apply here ({error}): every device holds all parameters; set '
      '--config.mesh, such as --config.mesh.data=1 --config.mesh.fsdp=-1, to divide them'
    )
    return meshes.make(dict(data=-1))


def checkpoint_metadata(workdir: str, step: str = 'last') -> dict[str, Any]:
  """The JSON part of a run's checkpoint: config, corpus hash, tokenizers, position in the data."""
  checkpoints = checkpoint.Checkpoints(pathlib.Path(workdir))
  metadata = checkpoints.read_metadata(checkpoints.find_step(step))
  checkpoints.close()
  return metadata


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What a model has on a whole split.

  Attributes:
    metrics: by name.
    confusion_matrix: of a classifier, the number of items by [true class, predicted class], float64; of a
      mixture weighted as its metrics are. None: no classifier.
    class_names: in the order of their numbers.
  """

  metrics: dict[str, float]
  confusion_matrix: np.ndarray | None = None
  class_names: tuple[str, ...] = ()


def evaluate(run: Run, split: str) -> Evaluation:
  """Evaluates a run on a whole split of its config's data.

  Raises:
    ValueError: if the source has no such split.
  """
  data = open_evaluation_data(run)
  with processes.main_process_first():
    documents = data.tokens(split)
  reference = open_reference(run)
  with sharding.context(run.mesh, run.rules):
    where = sharding.batch_sharding(run.mesh, run.rules)
    measure_split = build_measure_fn(run.experiment, run.model, data, where, split, batches=0)
    totals = measure_split(run.params, reference)
  metrics = summarize_totals(run.experiment.objective, totals)
  if (matrix := totals.whole.sums.get(CONFUSION_MATRIX)) is None:
    return Evaluation(metrics)
  return Evaluation(metrics, matrix, documents.names)


def evaluate_lengths(
  run: Run,
  split: str,
  lengths: Sequence[int],
  protocols: Sequence[str] = ('nonoverlapping',),
  stride: int | None = None,
  targets: int = 0,
) -> list[length_extrapolation.LengthRecord]:
  """Evaluates a decoder on a split at several row lengths; see
  `tfm.evaluation.length_extrapolation.measure_extrapolation`.

  Raises:
    ValueError: if the source has no such split, and for what that rejects.
  """
  length_extrapolation.validate_model(run.model, protocols)
  require(
    run.tokenizer.is_lossless,
    f'config.data.tokenizer={run.config.data.tokenizer!r} is not lossless, so '
    'bytes cannot be counted at every length; evaluate without --lengths',
  )
  data, config = open_evaluation_data(run), run.config
  # As many tokens as a training microbatch, which fits in memory with the same loss chunk.
  batch_tokens = config.training.batch_size // config.training.gradient_accumulation * config.data.length
  with sharding.context(run.mesh, run.rules):
    return length_extrapolation.measure_extrapolation(
      run.model,
      run.params,
      data.tokens(split),
      lengths,
      token_bytes=run.tokenizer.token_bytes,
      sharding=sharding.batch_sharding(run.mesh, run.rules),
      protocols=protocols,
      stride=stride,
      targets=targets,
      batch_tokens=batch_tokens,
      chunk=config.training.loss_chunk or length_extrapolation.CHUNK,
      threads=config.data.reader_threads,
    )


def open_reference(run: Run) -> Reference | None:
  """The frozen model that an evaluation of the run compares with; None: it compares with none.

  Raises:
    ValueError: if its run or step is missing.
  """
  if not run.experiment.objective.evaluates_with_reference:
    return None
  tokenizers = base_tokenizer(run.tokenizer), run.source_tokenizer
  reference = load_reference(run.experiment, run.model, tokenizers, run.reference)
  return reference.restore(run.mesh, run.rules)


def open_evaluation_data(run: Run) -> TextData | ImageData:
  """Opens the data of a run's config, and prints a notice if they changed after training."""
  data = open_data(run)
  if run.corpus and data.corpus.hash != run.corpus:  # an imported model has no hash
    print_status(
      f'the data changed after the run was trained: the content hash was {run.corpus} and is '
      f'{data.corpus.hash}; '
      'the training and evaluation splits are still disjoint, because documents are assigned by their content'
    )
  return data


def open_data(run: Run) -> TextData | ImageData:
  """Opens the data of a run's config with the run's tokenizers."""
  with processes.main_process_first():
    return pipeline.open_data(
      run.experiment.source, base_tokenizer(run.tokenizer), cache.directory(), run.source_tokenizer
    )


def translate_split(
  run: Run, split: str
) -> tuple[list[tuple[str, str]], Iterator[tuple[int, list[Translation]]]]:
  """The (source, reference) pairs of a whole split, and an encoder-decoder's translations as `translate`
  yields them.

  Raises:
    ValueError: if the source has no such split.
  """
  data, split = open_data(run).select(split)
  corpus = data.corpus
  require(split in corpus.splits, f'--split={split} does not exist; known: {", ".join(corpus.splits)}')
  require(
    corpus.documents[split] != INFINITE,
    f'--split={split} of {corpus.name} is endless; evaluate {" or ".join(corpus.bytes)}',
  )
  pairs = list(zip(*(corpus.splits[split][side] for side in ('source', 'target'))))

  def translations():
    with sharding.context(run.mesh, run.rules):
      yield from translate(
        *unroll_layers(run.model, run.params),
        run.tokenizer,
        [source for source, _ in pairs],
        settings=run.experiment.beam_search,
        max_extra_tokens=run.config.decoding.max_extra_tokens,
        source_tokenizer=run.source_tokenizer,
      )

  return pairs, translations()
