"""The attention weights of a run for a text."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding import beam, loop
from tfm.decoding.unroll_layers import unroll_layers
from tfm.errors import require
from tfm.evaluation import attention_maps
from tfm.mixers.protocol import Context
from tfm.parallel import sharding
from tfm.runs.load import Run
from tfm.shapes import Int


# Maximum tokens of a text; a larger map does not fit on a screen.
LONGEST = 512


def compute_text_maps(
  run: Run,
  text: str,
  target: str | None = None,
  layers: Sequence[int] | None = None,
  heads: Sequence[int] | None = None,
) -> tuple[list[attention_maps.AttentionMaps], dict[str, Int[np.ndarray, 'T']]]:
  """The maps of a text, for each kind of attention with weights, and the tokens of 'text' and, for an
  encoder-decoder, of 'source'.

  Args:
    text: for an encoder-decoder, the source.
    target: of an encoder-decoder; None: the model's translation by config.decoding.
    layers, heads: indices to include, from 0; None: all.

  Raises:
    ValueError: for a text longer than `LONGEST` tokens or than the model's positions, and for a target of
      another model.
  """
  inputs, tokens = prepare_inputs(run, text, target)
  labels = {name: attention_maps.label_tokens(row, tokenizer_of(run, name)) for name, row in tokens.items()}
  with sharding.context(run.mesh, run.rules):
    return attention_maps.compute_maps(run.model, run.params, inputs, labels, layers, heads), tokens


def prepare_inputs(
  run: Run, text: str, target: str | None
) -> tuple[list[Any], dict[str, Int[np.ndarray, 'T']]]:
  """The model's inputs for a text, and the tokens of 'text' and, for an encoder-decoder, of 'source'."""
  model, architecture = run.model, run.config.model.architecture
  require(
    architecture != 'image_text',
    f'config.model.architecture={architecture!r} reads a text and an image, which have no map; use a run '
    'that reads texts alone',
  )
  pairs = hasattr(model, 'encode')
  require(pairs or target is None, 'a target requires an encoder-decoder; remove it')

  if not pairs:
    tokens = dict(text=run.encode(text))
    check_length('text', tokens['text'], model.positions)
    return single_row(tokens['text'], 'prefix' in model.required_fields), tokens
  source = run.encode(text)
  check_length('source', source, model.encoder.keywords['positions'])
  tokens = dict(
    source=source,
    text=run.tokenizer.target_prompt_ids(target) if target is not None else translate_source(run, source),
  )
  check_length('target', tokens['text'], model.positions)
  return [*single_row(tokens['text']), None, *single_row(source)], tokens


def single_row(tokens: Int[np.ndarray, 'T'], prefixed: bool = False) -> list[Any]:
  """The inputs for one row of tokens.

  With prefix masks the whole row is the prefix, as in the prefill of `tfm generate`.
  """
  context = Context.contiguous(tokens[None])
  if prefixed:
    context = context.replace(prefix=np.full_like(tokens[None], len(tokens) - 1))
  return [tokens[None], context]


def translate_source(run: Run, source: Int[np.ndarray, 'S']) -> Int[np.ndarray, 'T']:
  """The decoder's input for its best translation: the start of a target and the translation."""
  tokenizer, max_extra_tokens = run.tokenizer, run.config.decoding.max_extra_tokens
  start = tokenizer.target_prompt_ids()
  with sharding.context(run.mesh, run.rules):
    [hypotheses] = beam.search(
      *unroll_layers(run.model, run.params),
      [start],
      sources=[source],
      eos=tokenizer.eos_id,
      settings=run.experiment.beam_search,
      max_tokens=min(len(source) + max_extra_tokens, LONGEST - 1),
    )
  return np.array([*start, *hypotheses[0].tokens], np.int32)


def check_length(name: str, tokens: Int[np.ndarray, 'T'], positions: Sequence[Callable]) -> None:
  """Raises ValueError for a text beyond `LONGEST` or the model's maximum position."""
  require(
    len(tokens) <= LONGEST,
    f'the {name} has {len(tokens)} tokens, and a map shows at most {LONGEST}; shorten it',
  )
  for position, limit in loop.list_position_limits(positions):
    require(
      len(tokens) <= limit,
      f'the {name} has {len(tokens)} tokens, and {position} has {limit} positions; shorten it',
    )


def tokenizer_of(run: Run, name: str) -> Tokenizer:
  """The tokenizer of the 'text' or of the 'source'."""
  return (name == 'source' and run.source_tokenizer) or run.tokenizer
