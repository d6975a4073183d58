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
from tfm.data.tokenizers import marian
from tfm.errors import require
from tfm.hf.export import to_pretrained
from tfm.hf.from_config import load_families
from tfm.hf.pretrained import Pretrained, from_pretrained, locate_checkpoint
from tfm.layers.lora import merge_adapters
from tfm.parallel import processes
from tfm.runs.load import Run
from tfm.spec import parse
from tfm.training import checkpoint
from tfm.training.atomic_files import write_atomically


# Files of a tokenizer, next to the tensors.
TOKENIZER_FILES = (
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'spiece.model',
  'tokenizer.model',
  'vocab.txt',
  'vocab.json',
  'merges.txt',
  'added_tokens.json',
  *marian.FILES,
  marian.TARGET_VOCAB,
)


def convert_from_hf(
  path: str, workdir: str, override: Callable[[ConfigDict], ConfigDict] = lambda config: config
) -> Pretrained:
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
  folder_text = repr(str(folder.absolute()))
  if not config.model.patch:
    is_marian = all((folder / name).exists() for name in marian.FILES)
    config.data.tokenizer = f'{"marian" if is_marian else "published"}({folder_text})'
  if pretrained.source_vocab:
    config.data.source_tokenizer = f'marian({folder_text}, sources=True)'
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
    published=dict(
      family=pretrained.family.model_type,
      output=pretrained.output,
      ids=pretrained.ids,
      vocab=pretrained.vocab,
      source_vocab=pretrained.source_vocab,
    ),
  )
  with contextlib.closing(checkpoint.Checkpoints(workdir, keep=1)) as checkpoints:
    checkpoints.save_params(pretrained.params, run)
  return dataclasses.replace(pretrained, config=config)


def export_to_hf(run: Run, workdir: str, folder: str, family: str | None = None) -> str:
  """Writes a run's model as a published checkpoint; returns a sentence that lists what was written.

  Args:
    family: None: the family that the run was imported from.

  Raises:
    ValueError: as `to_pretrained`; for a run that was not imported, without a family.
  """
  published = run.published or {}
  require(
    bool(family or published),
    f'--workdir={workdir} was not imported; set --family, one of {", ".join(load_families())}',
  )
  family = family or published['family']
  tokenizer, source_tokenizer = run.tokenizer, run.source_tokenizer
  vocab = published.get('vocab') or (tokenizer.vocab_size if tokenizer else 0)
  source_vocab = published.get('source_vocab') or (source_tokenizer.vocab_size if source_tokenizer else 0)
  ids = published.get('ids') or (
    {} if tokenizer is None else dict(eos=tokenizer.eos_id, start=tokenizer.bos_id)
  )
  objective = parse(run.config.objective)
  if objective.name == 'classification':
    output = 'token_classes' if objective.kwargs.get('words') else 'classes'
  else:
    output = published.get('output') or 'vocabulary'
  to_pretrained(run.config, merge_adapters(run.params), folder, family, vocab, ids, output, source_vocab)
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
  elif tokenizer:
    message += f'; no tokenizer, because {run.config.data.tokenizer!r} has no published format'
  return message
