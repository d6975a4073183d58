"""Texts from texts, by beam search."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tfm.data.tokenizers.protocol import Tokenizer
from tfm.decoding import beam
from tfm.decoding.loop import most, reaches
from tfm.models.decoder import Decoder
from tfm.shapes import PyTree


# Rows decoded at once; those of a batch are of like length.
ROWS = 64


class Translation(NamedTuple):
  """A whole target, and its hypothesis's score."""

  text: str
  score: float


def translate(
  model: Decoder,
  params: PyTree,
  tokenizer: Tokenizer,
  texts: Sequence[str],
  *,
  beams: int,
  penalty: Callable,
  longer: int,
  max_tokens: int | None = None,
  source_tokenizer: Tokenizer | None = None,
  forced: str = '',
  stopping: str = 'proven',
  rows: int = ROWS,
) -> Iterator[tuple[int, list[Translation]]]:
  """(number of the text, its translations, the best first), batch by batch, shortest texts first.

  Args:
    source_tokenizer: of the texts, where it is another.
    longer: tokens that a target may be longer than its source, as far as there are positions for them, unless `max_tokens`
      says how many it may have.
    forced: how every target begins.
    stopping: as in `beam.search`.
  """
  reader = source_tokenizer or tokenizer
  sources = [reader.source(text) for text in texts]
  prompt = tokenizer.target(forced)
  room = max(1, min((most(reach, len(prompt)) for _, reach in reaches(model.positions)), default=math.inf))
  order = sorted(range(len(texts)), key=lambda i: len(sources[i]))
  for start in range(0, len(order), rows):
    batch = order[start : start + rows]
    found = beam.search(
      model,
      params,
      [prompt] * len(batch),
      sources=[sources[i] for i in batch],
      eos=tokenizer.eos_id,
      beams=beams,
      penalty=penalty,
      max_tokens=[max_tokens or min(len(sources[i]) + longer, room) for i in batch],
      stopping=stopping,
    )
    for i, hypotheses in zip(batch, found):
      yield i, [Translation(forced + tokenizer.decode(tokens), score) for tokens, score in hypotheses]
