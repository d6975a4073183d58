"""A run of a published checkpoint, and a published checkpoint of a run."""

import contextlib
import dataclasses
import pathlib
import shutil
from collections.abc import Callable

from ml_collections import ConfigDict

from tfm.config import assemble
from tfm.config.difference import list_differences
from tfm.config.load import to_json
from tfm.config.resolve import resolve_config
from tfm.data.tokenizers import marian
from tfm.errors import require
from tfm.hf.export import export
from tfm.hf.from_config import families
from tfm.hf.pretrained import Pretrained, from_pretrained, located
from tfm.layers.lora import merged
from tfm.runs.load import Run, carried
from tfm.spec import parse
from tfm.training import checkpoint


# What a tokenizer is kept in, beside the tensors.
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


def imported(
  path: str, workdir: str, assigned: Callable[[ConfigDict], ConfigDict] = lambda config: config
) -> Pretrained:
  """Makes a run of a published checkpoint: its parameters and its tokenizer, after no step.

  Args:
    assigned: config → the config with what the user said.

  Raises:
    ValueError: as `from_pretrained`; for a folder without a tokenizer, a workdir that holds a run, or a config whose model
      is not the one that was published.
  """
  folder, workdir = located(path), pathlib.Path(workdir)
  require(not (workdir / 'checkpoints').exists(), f'--workdir={workdir} holds a run; name another')
  made = from_pretrained(str(folder))
  config = made.config.copy_and_resolve_references()
  where = repr(str(folder.absolute()))
  tokenizer = source_tokenizer = None
  if not made.config.model.patch:
    of_marian = all((folder / name).exists() for name in marian.FILES)
    config.data.tokenizer = f'{"marian" if of_marian else "published"}({where})'
    tokenizer = assemble.tokenizer(config).train(())
  if made.source_vocab:
    config.data.source_tokenizer = f'marian({where}, sources=True)'
    source_tokenizer = assemble.source_tokenizer(config).train(())
  config = resolve_config(assigned(config))
  lines = [
    line for line in list_differences(made.config.to_dict(), config.to_dict()) if line.startswith('model.')
  ]
  require(
    not lines,
    f'--config.{lines[0] if lines else ""}: the model is the one that was published; leave it as it is',
  )
  workdir.mkdir(parents=True, exist_ok=True)
  (workdir / 'config.json').write_text(to_json(config))
  run = dict(
    config=config.to_dict(),
    corpus='',
    tokenizer=tokenizer and tokenizer.state(),
    data=None,
    source_tokenizer=source_tokenizer and source_tokenizer.state(),
    published=dict(
      family=made.family.model_type,
      output=made.output,
      ids=made.ids,
      vocab=made.vocab,
      source_vocab=made.source_vocab,
    ),
  )
  with contextlib.closing(checkpoint.Checkpoints(workdir, keep=1)) as checkpoints:
    checkpoints.begin(made.params, run)
  return dataclasses.replace(made, config=config)


def exported(run: Run, workdir: str, folder: str, family: str | None = None) -> str:
  """Writes a run's model as a published checkpoint, and says what was written.

  Args:
    family: None: that which the run was imported of.

  Raises:
    ValueError: as `export`; for a run of no family.
  """
  published = carried(workdir, str(run.step)).get('published') or {}
  require(
    bool(family or published),
    f'--workdir={workdir} was not imported; --family says how it is to be written, one of '
    f'{", ".join(families())}',
  )
  tokenizer = run.tokenizer
  vocab = published.get('vocab') or (tokenizer.vocab_size if tokenizer else 0)
  own = run.source_tokenizer
  source_vocab = published.get('source_vocab') or (own.vocab_size if own else 0)
  ids = published.get('ids') or (
    {} if tokenizer is None else dict(eos=tokenizer.eos_id, start=tokenizer.bos_id)
  )
  objective = parse(run.config.objective)
  classes = 'classes of words' if objective.kwargs.get('words') else 'classes'
  output = classes if objective.name == 'classification' else published.get('output') or 'vocabulary'
  export(
    run.config, merged(run.params), folder, family or published['family'], vocab, ids, output, source_vocab
  )
  told = f'config.json and tensors of {family or published["family"]}'
  came = parse(run.config.data.tokenizer)
  if came.name in ('published', 'marian'):
    files = [name for name in TOKENIZER_FILES if (pathlib.Path(came.args[0]) / name).exists()]
    for name in files:
      shutil.copy(pathlib.Path(came.args[0]) / name, folder)
    told += (
      f', and its tokenizer, {", ".join(files)}'
      if files
      else f'; {came.args[0]} no longer holds its tokenizer'
    )
  elif tokenizer:
    told += f'; its tokenizer, {run.config.data.tokenizer!r}, has no published form and stays with the run'
  return told
