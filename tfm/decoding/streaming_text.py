"""Streaming conversion of tokens to text."""

import codecs
from collections.abc import Iterable, Iterator

from tfm.data.tokenizers.protocol import Tokenizer


def stream_text(tokenizer: Tokenizer, chunks: Iterable[Iterable[int]]) -> Iterator[str]:
  """Yields the text of each chunk of tokens; the concatenation equals `tokenizer.decode` of all tokens.

  A character with bytes in several tokens is yielded with its last byte.
  """
  if not tokenizer.is_lossless:
    return _stream_differences(tokenizer, chunks)
  pieces = (b''.join([tokenizer.pieces[i] for i in chunk]) for chunk in chunks)
  return codecs.iterdecode(pieces, 'utf-8', errors='replace')


def _stream_differences(tokenizer: Tokenizer, chunks: Iterable[Iterable[int]]) -> Iterator[str]:
  """Yields what each chunk adds to the text of all tokens; an incomplete character is deferred."""
  ids, yielded = [], ''
  for chunk in chunks:
    ids += chunk
    text = tokenizer.decode(ids)
    if text.startswith(yielded) and not text.endswith('\ufffd'):
      yield text[len(yielded) :]
      yielded = text
  yield tokenizer.decode(ids)[len(yielded) :]
