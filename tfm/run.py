"""A run: a config made into everything that trains, and a working directory read back into a model."""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import logging
import pathlib
import platform
from collections.abc import Callable, Iterator, Sequence

import flax.linen as nn
import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from tfm import build, check
from tfm import config as configs
from tfm.config import require
from tfm.data import cache, device, pipeline
from tfm.data.corpus import ENDLESS
from tfm.data.pipeline import ImageData, TextData
from tfm.data.special import extended, plain
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokenizers.protocol import load as load_tokenizer
from tfm.decoding.translate import Translation, translate
from tfm.decoding.unrolled import unrolled
from tfm.evaluation import length
from tfm.evaluation.measure import measure
from tfm.models import flops
from tfm.models.trunk import Trunk
from tfm.parallel import chips, sharding
from tfm.parallel import mesh as meshes
from tfm.shapes import PyTree
from tfm.training import checkpoint, loop
from tfm.training import state as states
from tfm.training.metrics import Log
from tfm.training.progress import Line, say
from tfm.training.step import evaluation_step, train_step


@dataclasses.dataclass(frozen=True)
class Run:
  """A trained model, ready to be asked.

  Attributes:
    config: resolved; model, params: what it says; mesh, rules: where it lives.
    tokenizer: with the special tokens of its objective; None of images.
    step: of the checkpoint; corpus: hash of the documents that it learnt from.
    source_tokenizer: of the source of pairs, where it is another; else None.
  """

  config: ConfigDict
  model: Trunk
  params: PyTree
  tokenizer: Tokenizer | None
  mesh: Mesh
  rules: sharding.Rules
  step: int
  corpus: str
  source_tokenizer: Tokenizer | None = None


def load(workdir: str, step: str = 'last', average: int | None = None) -> Run:
  """Reads a run back from its checkpoint at step 'last', 'best' or a number.

  Args:
    average: checkpoints up to that one whose parameters are averaged; None: as config.decoding says.

  Raises:
    ValueError: if there is no run or no such checkpoint.
  """
  workdir = pathlib.Path(workdir)
  require((workdir / 'checkpoints').is_dir(), f'--workdir={workdir} holds no run; tfm train makes one')
  checkpoints = checkpoint.Checkpoints(workdir)
  number = checkpoints.find(step)
  saved = checkpoints.run(number)
  config = configs.resolve(configs.complete(saved['config']))
  tokenizer, source_tokenizer = (
    load_tokenizer(saved[name]) if saved.get(name) else None for name in ('tokenizer', 'source_tokenizer'))
  # A run is read on whatever is there, token by token too: not on the mesh, or by the kernel, that trained it.
  for part in configs.parts(config).values():
    if part.kernel != 'auto':
      say(f'kernel: trained by {part.kernel}, read by auto')
      part.kernel = 'auto'
  mesh = meshes.make(dict(data=-1))
  rules = sharding.parse_rules(config.rules)
  model = make_model(config, tokenizer, source_tokenizer)
  boxed = jax.eval_shape(lambda key: states.parameters(model, key, 1, config.data.length), jax.random.key(0))
  where = sharding.partition_specs(boxed, mesh, rules)
  average = config.decoding.average if average is None else average
  require(average >= 1, f'--average={average} must be at least 1')
  params = checkpoints.averaged(number, average, checkpoint.target(nn.unbox(boxed), where))
  checkpoints.close()
  tokenizer = extended(tokenizer, build.objective(config).special)
  return Run(config, model, params, tokenizer, mesh, rules, number, saved['corpus'], source_tokenizer)


def make_model(config: ConfigDict, tokenizer: Tokenizer | None, source_tokenizer: Tokenizer | None) -> Trunk:
  """The model for the vocabularies of some tokenizers."""
  vocab, source_vocab = (one.vocab_size if one else 0 for one in (tokenizer, source_tokenizer))
  return build.model(config, vocab, source_vocab=source_vocab)


def train(config: ConfigDict, workdir: str) -> None:
  """Trains a resolved config in `workdir`, from its last checkpoint if there is one.

  Raises:
    ValueError: before anything compiles, for a config that cannot be run or that differs from the
      checkpoint's in a field that matters.
    loop.Diverged: if a metric stops being finite.
  """
  workdir, training = pathlib.Path(workdir), config.training
  check.run(config, jax.device_count())
  objective, packing = build.objective(config), build.packing(config)
  optimizer, rate = build.optimizer(config)
  # What can be refused without the data is refused before they are read.
  source, tokenizer, source_tokenizer = build.source(config), build.tokenizer(config), build.source_tokenizer(config)
  build.model(config, vocab=1)
  last, saved = previous(workdir)
  if saved:
    refuse_difference(saved['config'], config, workdir)

  data = pipeline.open_data(source, tokenizer, cache.directory(), source_tokenizer)
  carried = dict(config=config.to_dict(), corpus=data.corpus.hash) | {
    name: one.state() if one else None
    for name, one in dict(tokenizer=data.tokenizer, source_tokenizer=data.source_tokenizer).items()}
  require(not saved or saved['corpus'] == data.corpus.hash,
          f'config.data.source={config.data.source!r} holds other data than the checkpoint in {workdir} learnt '
          f'from; restore those or train in a new --workdir')
  for name in ('tokenizer', 'source_tokenizer'):
    require(not saved or saved.get(name) == carried[name],
            f'config.data.{name}={config.data[name]!r} is no longer the one of the checkpoint in {workdir}; '
            'restore the cached one or train in a new --workdir')
  model = make_model(config, data.tokenizer, data.source_tokenizer)
  mesh, rules = meshes.make(config.mesh.to_dict()), sharding.parse_rules(config.rules)
  make = states.init(model, optimizer, training.batch_size, config.data.length, config.model.dtype == 'float16')
  boxed = states.abstract(make)
  where = states.shardings(boxed, mesh, rules)
  batch_sharding = sharding.batch_sharding(mesh, rules)
  rows = objective.rows(packing, data.tokens('train'), config.data.length, config.seed, data.tokenizer)
  iterator = pipeline.train_iterator(
    rows, training.batch_size, *device.process_rows(batch_sharding, training.batch_size), threads=config.data.threads)

  workdir.mkdir(parents=True, exist_ok=True)
  (workdir / 'config.json').write_text(configs.to_json(config))
  checkpoints = checkpoint.Checkpoints(workdir, training.keep)
  if saved:
    state = checkpoints.state(last, checkpoint.target(nn.unbox(boxed), where))
    iterator.set_state(saved['data'])
  else:
    state = states.born(make, config.seed, where, mesh, rules)
  said = introduction(config, data, boxed.params, mesh, last)
  say(said)
  with (workdir / 'log.txt').open('a') as file:
    file.write(f'\n{datetime.datetime.now():%Y-%m-%d %H:%M:%S}\n{said}\n')
  log, heard = logging.getLogger('tfm'), logging.FileHandler(workdir / 'log.txt')
  log.addHandler(heard)

  metrics = Log(workdir, last)
  line = Line(last, training.steps, flops.training_flops_per_token(model, config.data.length), chips.peak_flops())
  with sharding.context(mesh, rules):
    step = jax.jit(train_step(model, objective, optimizer, rate, training.accumulation),
                   donate_argnums=0, out_shardings=(where, None))
    try:
      with line:
        loop.fit(
          state, device.prefetch(iterator, batch_sharding, training.batch_size), step,
          evaluation(config, model, data, batch_sharding, 'validation', training.evaluation_batches),
          lambda state, place, loss: checkpoints.save(state, dict(carried, data=place), loss),
          loop.Cadence(training.steps, training.log_every, training.evaluate_every, training.profile),
          metrics, line, str(workdir / 'profile'))
    finally:
      checkpoints.close()
      metrics.close()
      log.removeHandler(heard)
      heard.close()
  say(f'{workdir}: config.json, log.txt, metrics.jsonl, checkpoints/ and the loss curves, curves.png')


def previous(workdir: pathlib.Path) -> tuple[int, dict | None]:
  """The last checkpoint's step and what it carries; (0, None) without one."""
  if not (workdir / 'checkpoints').is_dir():
    return 0, None
  checkpoints = checkpoint.Checkpoints(workdir)
  last = checkpoints.latest()
  saved = None if last is None else checkpoints.run(last)
  checkpoints.close()
  return last or 0, saved


def introduction(config: ConfigDict, data: TextData | ImageData, params: PyTree, mesh: Mesh, last: int) -> str:
  """What is about to be trained, for the log."""
  versions = ' '.join(f'{name} {importlib.metadata.version(name)}' for name in ('jax', 'flax', 'optax'))
  count = sum(x.size for x in jax.tree.leaves(nn.unbox(params)))
  return (f'{data}\n'
          f'model: {count:,} parameters, kernel {config.model.kernel}, {config.model.dtype}\n'
          f'devices: {mesh.size} × {jax.devices()[0].device_kind}, mesh {dict(mesh.shape)}; {versions}, '
          f'Python {platform.python_version()}' + (f'\nresuming from step {last}' if last else ''))


def evaluate(run: Run, split: str) -> dict[str, float]:
  """Metrics of a whole split, on the data that the run's config names.

  Raises:
    ValueError: if the source has no such split.
  """
  data = compared_data(run)
  with sharding.context(run.mesh, run.rules):
    where = sharding.batch_sharding(run.mesh, run.rules)
    return evaluation(run.config, run.model, data, where, split, batches=0)(run.params)


def extrapolation(
    run: Run, split: str, lengths: Sequence[int], protocols: Sequence[str] = ('nonoverlapping',),
    stride: int | None = None, targets: int = 0,
) -> list[length.Record]:
  """How well a decoder predicts a split in rows of some lengths, as `tfm.evaluation.length.extrapolation` measures it.

  Raises:
    ValueError: if the source has no such split, and for what that refuses.
  """
  length.check(run.model, protocols)
  data, config = compared_data(run), run.config
  # A batch is of as many tokens as a microbatch of training, whose logits may have been made in pieces.
  batch_tokens = config.training.batch_size // config.training.accumulation * config.data.length
  with sharding.context(run.mesh, run.rules):
    return length.extrapolation(
      run.model, run.params, data.tokens(split), lengths, token_bytes=run.tokenizer.token_bytes,
      sharding=sharding.batch_sharding(run.mesh, run.rules), protocols=protocols, stride=stride, targets=targets,
      batch_tokens=batch_tokens, chunk=config.training.loss_chunk or length.CHUNK, threads=config.data.threads)


def compared_data(run: Run) -> TextData | ImageData:
  """The data that a run's config names; it is said if they have changed since."""
  data = open_data(run)
  if data.corpus.hash != run.corpus:
    say(f'the data have changed since the run learnt from them: their content hash was {run.corpus} and is '
        f'{data.corpus.hash}; what was trained on and what is evaluated still differ, as splits go by document')
  return data


def open_data(run: Run) -> TextData | ImageData:
  """The data that a run's config names, for its tokenizers."""
  return pipeline.open_data(build.source(run.config), plain(run.tokenizer), cache.directory(), run.source_tokenizer)


def written(run: Run, split: str) -> tuple[list[tuple[str, str]], Iterator[tuple[int, list[Translation]]]]:
  """(source, reference) of a whole split, and what an encoder-decoder writes for each source, as `translate` does.

  Raises:
    ValueError: if the source has no such split.
  """
  corpus = open_data(run).corpus
  require(split in corpus.splits, f'--split={split} is not there; known: {", ".join(corpus.splits)}')
  require(corpus.documents[split] != ENDLESS,
          f'--split={split} of {corpus.name} has no end; evaluate {" or ".join(corpus.bytes)}')
  pairs = list(zip(*(corpus.splits[split][side] for side in ('source', 'target'))))
  decoding = run.config.decoding

  def translations():
    with sharding.context(run.mesh, run.rules):
      yield from translate(
        *unrolled(run.model, run.params), run.tokenizer, [source for source, _ in pairs], beams=decoding.beams,
        penalty=build.penalty(run.config), longer=decoding.longer, source_tokenizer=run.source_tokenizer,
        stopping=decoding.stopping)
  return pairs, translations()


def evaluation(
    config: ConfigDict, model: Trunk, data: TextData | ImageData, where: jax.sharding.Sharding, split: str, batches: int,
) -> Callable[[PyTree], dict[str, float]]:
  """params → metrics of a split: of `batches` batches spread over it, or of all of them for 0."""
  objective = build.objective(config)
  rows = objective.rows(build.packing(config), data.tokens(split), config.data.length, None, data.tokenizer)
  step = jax.jit(evaluation_step(model, objective))
  token_bytes = extended(data.tokenizer, objective.special).token_bytes if data.tokenizer else None
  # A microbatch, rounded up to what the devices divide: a run may be read on more of them than trained it.
  size = -(-config.training.batch_size // config.training.accumulation // where.num_devices) * where.num_devices

  def evaluate(params):
    made = pipeline.evaluation_batches(
      rows, size, *device.process_rows(where, size), threads=config.data.threads, limit=batches)
    with contextlib.closing(made):
      return measure(params, step, made, where, token_bytes, objective.summary)

  return evaluate


def refuse_difference(old: dict, new: ConfigDict, workdir: pathlib.Path) -> None:
  """Refuses to resume under a config that computes something else."""
  # Fields that are newer than the checkpoint had their defaults then.
  old = configs.resolve(configs.complete(old))
  lines = configs.difference(old.to_dict(), new.to_dict())
  require(not lines, f'--config differs from the checkpoint in {workdir} in fields that matter; '
                     f'set them back or train in a new --workdir:\n  ' + '\n  '.join(lines))
