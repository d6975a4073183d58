"""Tokens to text as they come."""

import codecs
from collections.abc import Iterable, Iterator

from tfm.data.tokenizers.protocol import Tokenizer


def stream(tokenizer: Tokenizer, chunks: Iterable[Iterable[int]]) -> Iterator[str]:
  """The text of each chunk of tokens, joined as `tokenizer.decode` of all of them.

  A character whose bytes are spread over several tokens is held back until its last one is there.
  """
  pieces = (b''.join([tokenizer.pieces[i] for i in chunk]) for chunk in chunks)
  return codecs.iterdecode(pieces, 'utf-8', errors='replace')
