"""Tokens to text as they come."""

import codecs
from collections.abc import Iterable, Iterator

from tfm.data.tokenizers.protocol import Tokenizer


def stream(tokenizer: Tokenizer, chunks: Iterable[Iterable[int]]) -> Iterator[str]:
  """The text of each chunk of tokens, joined as `tokenizer.decode` of all of them.

  A character whose bytes are spread over several tokens is held back until its last one is there.
  """
  if not tokenizer.is_lossless:
    return _grown(tokenizer, chunks)
  pieces = (b''.join([tokenizer.pieces[i] for i in chunk]) for chunk in chunks)
  return codecs.iterdecode(pieces, 'utf-8', errors='replace')


def _grown(tokenizer: Tokenizer, chunks: Iterable[Iterable[int]]) -> Iterator[str]:
  """What each chunk adds to the text of all tokens up to it; an unfinished character waits."""
  ids, said = [], ''
  for chunk in chunks:
    ids += chunk
    text = tokenizer.decode(ids)
    if text.startswith(said) and not text.endswith('\ufffd'):
      yield text[len(said) :]
      said = text
  yield tokenizer.decode(ids)[len(said) :]
