"""A run: a working directory read back into a model, and asked."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.config.schema import parts
from tfm.data import cache, device, pipeline
from tfm.data.corpus import INFINITE
from tfm.data.pipeline import ImageData, TextData
from tfm.data.special import extended, plain
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding.translate import Translation, translate
from tfm.decoding.unroll import unroll_layers
from tfm.errors import require
from tfm.evaluation import length
from tfm.evaluation.measure import measure
from tfm.models.trunk import Trunk
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.runs.init_from import make_model, read, tokenizers
from tfm.shapes import PyTree
from tfm.training import checkpoint
from tfm.training.progress import print_status
from tfm.training.step import evaluation_step


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
  config = resolve_config(complete(saved['config']))
  tokenizer, source_tokenizer = tokenizers(saved)
  # A run is read on whatever is there, token by token too: not on the mesh, or by the kernel, that trained it.
  for part in parts(config).values():
    if part.kernel != 'auto':
      print_status(f'kernel: trained by {part.kernel}, read by auto')
      part.kernel = 'auto'
  mesh = meshes.make(dict(data=-1))
  rules = sharding.parse_rules(config.rules)
  model = make_model(config, tokenizer, source_tokenizer)
  average = config.decoding.average_checkpoints if average is None else average
  require(average >= 1, f'--average={average} must be at least 1')
  params = read(checkpoints, number, config, model, mesh, average)
  checkpoints.close()
  tokenizer = extended(tokenizer, Experiment(config).objective.special_tokens)
  return Run(config, model, params, tokenizer, mesh, rules, number, saved['corpus'], source_tokenizer)


def checkpoint_metadata(workdir: str, step: str = 'last') -> dict[str, Any]:
  """What a run's checkpoint carries beside arrays: config, corpus hash, tokenizers, where the data stood."""
  checkpoints = checkpoint.Checkpoints(pathlib.Path(workdir))
  saved = checkpoints.run(checkpoints.find(step))
  checkpoints.close()
  return saved


def evaluate(run: Run, split: str) -> dict[str, float]:
  """Metrics of a whole split, on the data that the run's config names.

  Raises:
    ValueError: if the source has no such split.
  """
  data = compared_data(run)
  with sharding.context(run.mesh, run.rules):
    where = sharding.batch_sharding(run.mesh, run.rules)
    return build_evaluate_fn(run.config, run.model, data, where, split, batches=0)(run.params)


def evaluate_lengths(
  run: Run,
  split: str,
  lengths: Sequence[int],
  protocols: Sequence[str] = ('nonoverlapping',),
  stride: int | None = None,
  targets: int = 0,
) -> list[length.Record]:
  """How well a decoder predicts a split in rows of some lengths, as `tfm.evaluation.length.extrapolation` measures it.

  Raises:
    ValueError: if the source has no such split, and for what that refuses.
  """
  length.check(run.model, protocols)
  require(
    run.tokenizer.is_lossless,
    f'config.data.tokenizer={run.config.data.tokenizer!r} changes texts before it cuts them up, so '
    'their bytes cannot be counted at every length; evaluate without --lengths',
  )
  data, config = compared_data(run), run.config
  # A batch is of as many tokens as a microbatch of training, whose logits may have been made in pieces.
  batch_tokens = config.training.batch_size // config.training.gradient_accumulation * config.data.length
  with sharding.context(run.mesh, run.rules):
    return length.extrapolation(
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
      chunk=config.training.loss_chunk or length.CHUNK,
      threads=config.data.reader_threads,
    )


def compared_data(run: Run) -> TextData | ImageData:
  """The data that a run's config names; it is said if they have changed since."""
  data = open_data(run)
  if run.corpus and data.corpus.hash != run.corpus:  # what was imported does not tell what it learnt from
    print_status(
      f'the data have changed since the run learnt from them: their content hash was {run.corpus} and is '
      f'{data.corpus.hash}; what was trained on and what is evaluated still differ, as splits go by document'
    )
  return data


def open_data(run: Run) -> TextData | ImageData:
  """The data that a run's config names, for its tokenizers."""
  return pipeline.open_data(
    Experiment(run.config).source, plain(run.tokenizer), cache.directory(), run.source_tokenizer
  )


def translate_split(
  run: Run, split: str
) -> tuple[list[tuple[str, str]], Iterator[tuple[int, list[Translation]]]]:
  """(source, reference) of a whole split, and what an encoder-decoder writes for each source, as `translate` does.

  Raises:
    ValueError: if the source has no such split.
  """
  corpus = open_data(run).corpus
  require(split in corpus.splits, f'--split={split} is not there; known: {", ".join(corpus.splits)}')
  require(
    corpus.documents[split] != INFINITE,
    f'--split={split} of {corpus.name} has no end; evaluate {" or ".join(corpus.bytes)}',
  )
  pairs = list(zip(*(corpus.splits[split][side] for side in ('source', 'target'))))
  decoding = run.config.decoding

  def translations():
    with sharding.context(run.mesh, run.rules):
      yield from translate(
        *unroll_layers(run.model, run.params),
        run.tokenizer,
        [source for source, _ in pairs],
        beams=decoding.beams,
        penalty=assemble.penalty(run.config),
        max_extra_tokens=decoding.max_extra_tokens,
        source_tokenizer=run.source_tokenizer,
        stopping=decoding.stopping,
      )

  return pairs, translations()


def build_evaluate_fn(
  config: ConfigDict,
  model: Trunk,
  data: TextData | ImageData,
  where: jax.sharding.Sharding,
  split: str,
  batches: int,
) -> Callable[[PyTree], dict[str, float]]:
  """params → metrics of a split: of `batches` batches spread over it, or of all of them for 0."""
  objective = Experiment(config).objective
  rows = objective.rows(
    Experiment(config).packing, data.tokens(split), config.data.length, None, data.tokenizer
  )
  step = jax.jit(evaluation_step(model, objective))
  counts = data.tokenizer is not None and data.tokenizer.is_lossless
  token_bytes = extended(data.tokenizer, objective.special_tokens).token_bytes if counts else None
  # A microbatch, rounded up to what the devices divide: a run may be read on more of them than trained it.
  unit = where.num_devices // where.shard_shape((where.num_devices,))[0]
  if where.mesh.shape['stage'] > 1:
    unit *= max(1, config.pipeline.microbatches)
  size = -(-config.training.batch_size // config.training.gradient_accumulation // unit) * unit

  def evaluate(params):
    part = device.process_rows(where, size)
    made = pipeline.evaluation_batches(rows, size, *part, threads=config.data.reader_threads, limit=batches)
    with contextlib.closing(made):
      return measure(params, step, made, where, token_bytes, objective.summary, part)

  return evaluate
