"""Converts a published checkpoint to a run, and a run to a published checkpoint."""

import contextlib
import dataclasses
import pathlib
import shutil
from collections.abc import Callable

import jax
from ml_collections import ConfigDict

from tfm.config.assemble import Experiment
from tfm.config.difference import list_differences
from tfm.config.load import to_json
from tfm.config.resolve import resolve_config
from tfm.config.schema import default_config
from tfm.errors import require
from tfm.hf.export import to_pretrained
from tfm.hf.from_config import load_families
from tfm.hf.loaded_model import LoadedModel
from tfm.hf.pretrained import TOKENIZER_FILES, from_pretrained, locate_checkpoint, set_tokenizers
from tfm.layers.lora import merge_adapters
from tfm.parallel import processes
from tfm.runs.load import Run
from tfm.spec import parse
from tfm.training import checkpoint
from tfm.training.atomic_files import write_atomically


def convert_from_hf(
  path: str, workdir: str, override: Callable[[ConfigDict], ConfigDict] = lambda config: config
) -> LoadedModel:
  """Writes a run at step 0 with the parameters and the tokenizer of a published checkpoint.

  Args:
    override: applies the user's config overrides, of which a mesh holds the parameters while they are
      converted; by default one device does, or all of several processes.

  Raises:
    ValueError: as `from_pretrained`; for a folder without a tokenizer, a workdir that holds a run, or an
      override that changes the model.
  """
  folder, workdir = locate_checkpoint(path), pathlib.Path(workdir)
  require(not (workdir / 'checkpoints').exists(), f'--workdir={workdir} holds a run; use a new directory')
  requested = override(default_config())
  is_distributed = jax.process_count() > 1 or requested.mesh != default_config().mesh
  mesh = requested.mesh.to_dict() if is_distributed else None
  pretrained = from_pretrained(str(folder), mesh=mesh, slices=requested.slices.to_dict())
  config = pretrained.config.copy_and_resolve_references()
  set_tokenizers(config, folder, bool(pretrained.source_vocab))
  experiment = Experiment(config)
  tokenizer, source_tokenizer = (
    one and one.train(()) for one in (experiment.tokenizer, experiment.source_tokenizer)
  )
  config = resolve_config(override(config))
  differences = list_differences(pretrained.config.to_dict(), config.to_dict())
  changes = [line for line in differences if line.startswith('model.')]
  require(
    not changes,
    f'--config.{changes[0] if changes else ""}: the model is fixed by the published checkpoint; '
    'remove this override',
  )
  if processes.is_main_process():
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomically(workdir / 'config.json', to_json(config))
  processes.barrier()  # all have found the directory without a run
  run = dict(
    config=config.to_dict(),
    corpus='',
    tokenizer=tokenizer and tokenizer.state(),
    data=None,
    source_tokenizer=source_tokenizer and source_tokenizer.state(),
    published=pretrained.published,
  )
  with contextlib.closing(checkpoint.Checkpoints(workdir, keep=1)) as checkpoints:
    checkpoints.save_params(pretrained.params, run)
  return dataclasses.replace(pretrained, experiment=Experiment(config))


def export_to_hf(run: Run, workdir: str, folder: str, family: str | None = None) -> str:
  """Writes a run's model as a published checkpoint; returns a sentence that lists what was written.

  Args:
    family: None: the family that the run was imported from.

  Raises:
    ValueError: as `to_pretrained`; for a run that was not imported, without a family.
  """
  loaded = LoadedModel.from_run(run)
  require(
    bool(family or loaded.family),
    f'--workdir={workdir} was not imported; set --family, one of {", ".join(load_families())}',
  )
  family = family or loaded.family.model_type
  fields = loaded.vocab, loaded.ids, loaded.output, loaded.source_vocab
  to_pretrained(run.config, merge_adapters(run.params), folder, family, *fields)
  message = f'config.json and tensors of {family}'
  call = parse(run.config.data.tokenizer)
  if call.name in ('published', 'marian'):
    source = pathlib.Path(call.args[0])
    files = [name for name in TOKENIZER_FILES if (source / name).exists()]
    for name in files if processes.is_main_process() else ():
      shutil.copy(source / name, folder)
    message += (
      f', and its tokenizer: {", ".join(files)}'
      if files
      else f'; no tokenizer, because {source} no longer has one'
    )
  elif run.tokenizer:
    message += f'; no tokenizer, because {run.config.data.tokenizer!r} has no published format'
  return message
