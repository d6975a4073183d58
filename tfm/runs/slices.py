"""The loss slices of a trained run."""

import contextlib

import numpy as np

from tfm.data import pipeline
from tfm.data.row_share import process_share
from tfm.data.tokens import InfiniteDocuments, Tokens
from tfm.errors import require
from tfm.evaluation.evaluate_split import sum_batches
from tfm.evaluation.loss_slices import (
  MAX_COUNT,
  Slice,
  Slices,
  frequency_classes,
  frequent_ngrams,
  sum_by_slice,
)
from tfm.objectives.causal_lm import CausalLM
from tfm.objectives.protocol import Objective
from tfm.parallel import sharding
from tfm.runs.load import Run, open_evaluation_data
from tfm.runs.measure_split import evaluation_batch_size
from tfm.shapes import Int


# Tokens of the training split, from its beginning, that are counted.
COUNTED = 50_000_000


def evaluate_slices(
  run: Run, split: str, ngram: int = 2, batches: int = 0, max_count: int = MAX_COUNT
) -> list[Slice]:
  """The loss of a decoder on a split, by kinds of targets; see `tfm.evaluation.loss_slices`.

  Args:
    ngram: tokens of an n-gram, the target included; at least two.
    batches: how many batches, spread over the split; 0 for all.
    max_count: how often the training split may have the n-gram of an AR hit.

  Raises:
    ValueError: for an n-gram of fewer tokens, if the objective does not predict each next token, if the
      source has no such split, or if its training split is endless.
  """
  validate_slices(run.experiment.objective, ngram)
  config, objective = run.config, run.experiment.objective
  data, split = open_evaluation_data(run).select(split)
  trained = data.tokens('train')
  require(
    not isinstance(trained, InfiniteDocuments) and hasattr(trained, 'ids'),
    f'the tokens of config.data.source={config.data.source!r} cannot be counted: its training split is '
    'endless or a mixture; evaluate a source of documents, or of a mixture one, such as test/NAME',
  )
  ids = join_documents(trained, COUNTED)
  slices = Slices(
    ngram,
    frequency_classes(np.bincount(ids, minlength=run.model.vocab)),
    frequent_ngrams(ids, ngram, max_count),
  )
  rows = objective.rows(run.experiment.packing, data.tokens(split), config.data.length, None, data.tokenizer)
  with sharding.context(run.mesh, run.rules):
    where = sharding.batch_sharding(run.mesh, run.rules)
    size = evaluation_batch_size(config, where)
    share = process_share(where, size)
    iterator = pipeline.evaluation_batches(rows, size, share, config.data.reader_threads, batches)
    with contextlib.closing(iterator):
      labelled = slices.label(iterator)
      sums = sum_batches(
        run.params,
        lambda params, batch: sum_by_slice(run.model, objective, params, batch),
        labelled,
        where,
        share,
      )
  return slices.summarize(sums)


def join_documents(tokens: Tokens, most: int) -> Int[np.ndarray, 'N']:
  """The first tokens of the documents, `most` without those that stand between documents: the end of one and
  the prefix of the next.
  """
  ids, ends, between = (
    np.asarray(tokens.ids[:most], np.int32),
    tokens.offsets[1:],
    [tokens.eos_id, *tokens.prefix],
  )
  ends = ends[ends <= len(ids)]
  return np.insert(ids, np.repeat(ends, len(between)), np.tile(between, len(ends)))


def validate_slices(objective: Objective, ngram: int) -> None:
  """Raises ValueError for an objective that does not predict each next token, and for short n-grams."""
  require(ngram > 1, f'n-grams of {ngram} tokens: a repeat needs a token before its target; use 2 or more')
  require(
    isinstance(objective, CausalLM),
    f'slices of the loss need an objective that predicts each next token, and {type(objective).__name__} '
    'does not; use causal_lm or prefix_lm',
  )
