"""What training needs before anything is on a device: valid configs, where to start, data and model."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from tfm.analysis.validation_metrics import list_validation_metrics
from tfm.config import validate
from tfm.config.assemble import Experiment
from tfm.data import cache, pipeline
from tfm.data.pipeline import ImageData, TextData
from tfm.errors import require, suggest
from tfm.models.trunk import Trunk
from tfm.parallel import compiler_options, processes
from tfm.runs.init_from import PretrainedRun, build_model, load_pretrained, load_tokenizers
from tfm.runs.multihost_checks import require_ensemble_configs, require_equal_runs
from tfm.runs.reference import ReferenceRun, load_reference
from tfm.runs.resume import ResumePoint, find_resume_point
from tfm.runs.run_dir import RunDir
from tfm.training.progress_line import print_status
from tfm.training.state import State


@dataclasses.dataclass(frozen=True)
class Prepared:
  """What the config, its data and its checkpoints amount to; nothing is on a device yet.

  Attributes:
    run_dirs: of the runs; experiment: of the first run's config.
    resume: where to start; pretrained: the run of config.init_from whose parameters are needed, or None.
    reference: the run whose model the objective compares with, or None.
    data: tokenized; metadata: of every checkpoint to be saved, but for config and data position.
    model: for the vocabulary of `data`; init: seed key → initial state.
    started: when preparing began, by `time.perf_counter`.
  """

  run_dirs: Sequence[RunDir]
  experiment: Experiment
  resume: ResumePoint
  pretrained: PretrainedRun | None
  reference: ReferenceRun | None
  data: TextData | ImageData
  metadata: Mapping[str, Any]
  model: Trunk
  init: Callable[[jax.Array], State]
  started: float

  @property
  def config(self) -> ConfigDict:
    return self.experiment.config


def prepare(run_dirs: Sequence[RunDir], variants: Mapping[str, str] = {}) -> Prepared:
  """Validates the configs, finds the checkpoint to resume from, opens the data and builds the model.

  Args:
    variants: from outside the package, which `variant_folders.recording` adds as the runs use them; every
      checkpoint has them.

  Raises:
    ValueError: for configs that cannot be run, or that cannot resume from these directories.
  """
  for run_dir in run_dirs:
    validate.validate_workdir(run_dir.workdir)
  started, config = time.perf_counter(), run_dirs[0].config
  experiment = Experiment(config)
  require_equal_runs(run_dirs)
  require_ensemble_configs(experiment, run_dirs)
  validate.validate_run(experiment, 1 if len(run_dirs) > 1 else jax.device_count())
  validate.validate_parts(experiment)
  validate.validate_device(experiment, jax.devices()[0], jax.device_count())
  for field in validate.list_offloads(experiment) if jax.default_backend() == 'cpu' else ():
    print_status(f'note: {field} moves nothing on a CPU, whose memory is that of the host')
  compiler_options.require_accepted(experiment.compiler.resolve(jax.default_backend(), jax.device_count()))
  if processes.is_main_process():
    validate.validate_sinks(experiment)  # before the data are read
  resume = find_resume_point(run_dirs)
  # Frozen parameters are in no checkpoint of this run.
  needs_pretrained = config.init_from and (experiment.frozen_pattern or not resume.step)
  pretrained = load_pretrained(config, *resume.metadata[:1]) if needs_pretrained else None
  data = open_data(experiment, resume, pretrained)
  model = build_model(experiment, data.tokenizer, data.source_tokenizer)
  require_stop_metric(experiment, model)
  tokenizers = data.tokenizer, data.source_tokenizer
  saved = resume.metadata[0].get('reference') if resume.step else None
  reference = load_reference(experiment, model, tokenizers, saved)
  metadata = collect_metadata(data, resume, pretrained, reference) | dict(variants=variants)
  processes.require_equal(
    {f'what config.data.source={config.data.source!r} holds, or the tokenizer,': metadata}
  )
  for run_dir, saved in zip(run_dirs, resume.metadata):
    run_dir.require_same_data(saved, metadata)
  init = experiment.build_init(model)
  return Prepared(run_dirs, experiment, resume, pretrained, reference, data, metadata, model, init, started)


def require_stop_metric(experiment: Experiment, model: Trunk) -> None:
  """Raises ValueError unless validations have the metric of config.training.stop_when."""
  if metric := experiment.stop_rule.metric:
    known = list_validation_metrics(experiment, model)
    require(
      metric in known,
      f'config.training.stop_when={experiment.config.training.stop_when!r}: validations have no metric '
      f'{metric!r}; {suggest(metric, known)}',
    )


def open_data(
  experiment: Experiment, resume: ResumePoint, pretrained: PretrainedRun | None
) -> TextData | ImageData:
  """Opens the data; of several processes the main one tokenizes them and fills the cache first."""
  if not experiment.config.init_from:
    tokenizer, source_tokenizer = experiment.tokenizer, experiment.source_tokenizer
  elif resume.step:
    tokenizer, source_tokenizer = load_tokenizers(resume.metadata[0])
  else:
    tokenizer, source_tokenizer = pretrained.tokenizer, pretrained.source_tokenizer
  with processes.main_process_first():
    data = pipeline.open_data(experiment.source, tokenizer, cache.directory(), source_tokenizer)
    for split in ('train', 'validation') if jax.process_count() > 1 else ():
      data.tokens(split)
  return data


def collect_metadata(
  data: TextData | ImageData,
  resume: ResumePoint,
  pretrained: PretrainedRun | None,
  reference: ReferenceRun | None,
) -> dict[str, Any]:
  """What every checkpoint says: the corpus hash, the tokenizers, the runs and their steps that this one
  starts from and is compared with, and the published model.
  """
  metadata = dict(corpus=data.corpus.hash)
  for name, tokenizer in dict(tokenizer=data.tokenizer, source_tokenizer=data.source_tokenizer).items():
    metadata[name] = tokenizer.state() if tokenizer else None
  if resume.step:
    origin = {name: resume.metadata[0].get(name) for name in ('init_from', 'published')}
  elif pretrained:
    origin = dict(
      init_from=dict(workdir=pretrained.workdir, step=pretrained.step), published=pretrained.published
    )
  else:
    origin = {}
  if reference:
    origin['reference'] = dict(workdir=reference.workdir, step=reference.step)
  return metadata | {name: value for name, value in origin.items() if value}
