"""Translation of texts by beam search."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding import beam
from tfm.decoding.loop import count_new_tokens, list_position_limits
from tfm.models.decoder import Decoder
from tfm.shapes import PyTree


# Rows decoded at once; a batch has sources of similar length.
ROWS = 64


class Translation(NamedTuple):
  """A target text and the score of its hypothesis."""

  text: str
  score: float


def translate(  # more than six parameters: a model, texts and the options of one search
  model: Decoder,
  params: PyTree,
  tokenizer: Tokenizer,
  texts: Sequence[str],
  *,
  settings: beam.BeamSearch,
  max_extra_tokens: int,
  max_tokens: int | None = None,
  source_tokenizer: Tokenizer | None = None,
  forced: str = '',
  rows: int = ROWS,
) -> Iterator[tuple[int, list[Translation]]]:
  """Yields (index of the text, its translations, best first), batch by batch, shortest texts first.

  Args:
    source_tokenizer: of the texts; default: `tokenizer`.
    max_extra_tokens: how many tokens a target may be longer than its source, within the model's positions.
    max_tokens: of a target; replaces `max_extra_tokens`.
    forced: the text that every target starts with.
  """
  reader = source_tokenizer or tokenizer
  sources = [reader.source_ids(text) for text in texts]
  prompt = tokenizer.target_prompt_ids(forced)
  room = max(
    1,
    min(
      (count_new_tokens(limit, len(prompt)) for _, limit in list_position_limits(model.positions)),
      default=math.inf,
    ),
  )
  order = sorted(range(len(texts)), key=lambda i: len(sources[i]))
  for start in range(0, len(order), rows):
    batch = order[start : start + rows]
    results = beam.search(
      model,
      params,
      [prompt] * len(batch),
      sources=[sources[i] for i in batch],
      eos=tokenizer.eos_id,
      settings=settings,
      max_tokens=[max_tokens or min(len(sources[i]) + max_extra_tokens, room) for i in batch],
    )
    for i, hypotheses in zip(batch, results):
      yield i, [Translation(forced + tokenizer.decode(tokens), score) for tokens, score in hypotheses]
