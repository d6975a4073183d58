"""The texts of `tfm generate`, as a run generates them: sampled, searched, or with their masks filled."""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfm import spec
from tfm.config.assemble import Experiment
from tfm.config.schema import MAX_BEAMS
from tfm.data.progress_bar import track
from tfm.data.special_tokens import base_tokenizer
from tfm.decoding import beam, fill_mask, loop, streaming_text
from tfm.decoding.sampling import Sampling
from tfm.decoding.translate import Translation, translate
from tfm.decoding.unroll_layers import disable_scan, unroll_layers
from tfm.errors import require
from tfm.hf import text_length
from tfm.models.decoder import Decoder
from tfm.objectives.masked_lm import MASK
from tfm.runs import load
from tfm.runs.init_from import build_model
from tfm.shapes import PyTree


ROWS = 32  # continuations that are generated at once


class ModelForLength(NamedTuple):
  """The model that continues prompts, called with the length of the longest one in tokens.

  Attributes:
    build: length → model.
    depends_on_length: whether models differ; then only rows of one prompt are generated together, so that a
      text does not depend on other prompts.
  """

  build: Callable[[int], Decoder]
  depends_on_length: bool

  def __call__(self, length: int) -> Decoder:
    return self.build(length)


def prepare_model(loaded: load.Run) -> tuple[ModelForLength, PyTree]:
  """The model of a run and its parameters, without scan. The rotary scaling of an imported one follows the
  length of the text, if the published implementation's does."""
  model, params = unroll_layers(loaded.model, loaded.params)
  config, tokenizers = loaded.config, (base_tokenizer(loaded.tokenizer), loaded.source_tokenizer)
  if not (loaded.published and text_length.parts_by_length(config)):
    return ModelForLength(lambda length: model, False), params

  def build(length):
    return disable_scan(build_model(Experiment(text_length.follow_length(config, length)), *tokenizers))

  return ModelForLength(build, True), params


def split_into_batches(
  rows: Sequence[tuple[int, int]], model_for: ModelForLength
) -> Iterator[Sequence[tuple[int, int]]]:
  """Splits (prompt, sample) of each row, in order, into those that are generated together."""
  alone = itertools.groupby(rows, key=lambda row: row[0])
  groups = [list(group) for _, group in alone] if model_for.depends_on_length else [rows]
  for group in groups:
    for start in range(0, len(group), ROWS):
      yield group[start : start + ROWS]


class Text(NamedTuple):
  """A generated text of a prompt, in pieces as they are generated; the score is set by beam search and
  encoders.
  """

  prompt: int
  sample: int
  pieces: Iterable[str]
  score: float | None = None


def fill_texts(loaded: load.Run, prompts: list[str], args: argparse.Namespace) -> Iterator[Text]:
  """Yields the prompts with their masks filled, in order."""
  tokenizer = loaded.tokenizer
  rows = [
    np.array([tokenizer.bos_id, *tokenizer.encode(prompt), tokenizer.eos_id], np.int32) for prompt in prompts
  ]
  mask = tokenizer.special_token_ids.get(MASK, tokenizer.vocab_size - 1)
  results = fill_mask.fill_masks(loaded.model, loaded.params, rows, mask, args.num_samples)
  for i, best in enumerate(track(results, 'texts', len(prompts)) if len(prompts) > 1 else results):
    for j, (tokens, score) in enumerate(best):
      yield Text(i, j, [tokenizer.decode(tokens)], score)


def sample_texts(
  loaded: load.Run, prompts: list[str], args: argparse.Namespace, sampling: Sampling, is_encoder_decoder: bool
) -> Iterator[Text]:
  """Yields sampled texts, in order."""
  tokenizer, eos = loaded.tokenizer, loaded.tokenizer.eos_id
  starts = [args.forced or ''] * len(prompts) if is_encoder_decoder else prompts
  tokens = [
    tokenizer.target_prompt_ids(start)
    if is_encoder_decoder
    else np.array([tokenizer.bos_id, *tokenizer.encode(start)], np.int32)
    for start in starts
  ]
  sources = read_sources(loaded, prompts) if is_encoder_decoder else None
  longest = (
    max(map(len, sources)) + loaded.config.decoding.max_extra_tokens
    if is_encoder_decoder
    else loop.default_max_tokens(loaded.model, tokens)
  )
  max_tokens = args.max_tokens or longest
  loop.validate_inputs(loaded.model, tokens, max_tokens, sources)
  rows = list(itertools.product(range(len(prompts)), range(args.num_samples)))
  model_for, params = prepare_model(loaded)
  del loaded
  for batch in split_into_batches(rows, model_for):
    start = rows.index(batch[0])
    chunks = loop.generate(
      model_for(max(len(tokens[i]) for i, _ in batch)),
      params,
      [tokens[i] for i, _ in batch],
      max_tokens=max_tokens,
      eos=eos,
      sampling=sampling,
      seed=args.seed,
      samples=[j for _, j in batch],
      sources=[sources[i] for i, _ in batch] if is_encoder_decoder else None,
    )
    if len(rows) == 1 and not args.to:
      yield Text(
        0, 0, itertools.chain(starts, streaming_text.stream_text(tokenizer, (new[0] for new in chunks)))
      )
      return
    label = f'texts {start + 1}-{start + len(batch)} of {len(rows)}'
    new_tokens = track(chunks, label, -(-max_tokens // loop.CHUNK))
    for (i, j), new in zip(batch, zip(*new_tokens)):
      yield Text(i, j, [starts[i] + tokenizer.decode(np.concatenate(new))])


def search_texts(
  loaded: load.Run, prompts: list[str], args: argparse.Namespace, is_encoder_decoder: bool
) -> Iterator[Text]:
  """Yields the best texts of beam search, in order."""
  settings = loaded.config.decoding
  beams = settings.beams if args.beams is None else args.beams
  require(beams >= 1, f'--beams={beams} must be at least 1')
  require(beams <= MAX_BEAMS, f'--beams={beams} must be at most {MAX_BEAMS:,}')
  require(args.num_samples <= beams, f'--num_samples={args.num_samples} exceeds --beams={beams}')
  penalty = (
    loaded.experiment.beam_search.penalty
    if args.penalty is None
    else spec.build_from_table(args.penalty, beam.PENALTIES)
  )
  search = beam.BeamSearch(beams, penalty, args.stopping or settings.stopping)
  tokenizer = loaded.tokenizer
  model_for, params = prepare_model(loaded)
  if is_encoder_decoder:
    results = translate(
      model_for(1),
      params,
      tokenizer,
      prompts,
      settings=search,
      max_extra_tokens=settings.max_extra_tokens,
      max_tokens=args.max_tokens,
      source_tokenizer=loaded.source_tokenizer,
      forced=args.forced or '',
    )
  else:
    results = continue_texts(model_for, params, tokenizer, prompts, args.max_tokens, search)
  del loaded
  if len(prompts) > 1:
    results = track(results, 'texts', len(prompts))
  results = dict(results)
  for i in range(len(prompts)):
    for j, (content, score) in enumerate(results[i][: args.num_samples]):
      yield Text(i, j, [content], score)


def continue_texts(
  model_for, params, tokenizer, prompts, max_tokens, settings
) -> Iterator[tuple[int, list[Translation]]]:
  """As `translate`, for a decoder."""
  tokens = [np.array([tokenizer.bos_id, *tokenizer.encode(prompt)], np.int32) for prompt in prompts]
  max_tokens = max_tokens or loop.default_max_tokens(model_for(max(map(len, tokens))), tokens)
  for batch in split_into_batches([(i, 0) for i in range(len(prompts))], model_for):
    hypotheses = beam.search(
      model_for(max(len(tokens[i]) for i, _ in batch)),
      params,
      [tokens[i] for i, _ in batch],
      max_tokens=max_tokens,
      eos=tokenizer.eos_id,
      settings=settings,
    )
    for (i, _), best in zip(batch, hypotheses):
      yield i, [Translation(prompts[i] + tokenizer.decode(new), score) for new, score in best]


def read_sources(loaded: load.Run, texts: list[str]) -> list[np.ndarray]:
  """The tokens of sources, end tokens included."""
  tokenizer = loaded.source_tokenizer or loaded.tokenizer
  return [tokenizer.source_ids(text) for text in texts]
