"""Streaming conversion of tokens to text."""

import abc
import codecs
from collections.abc import Iterable, Iterator

from tfm.data.tokenizers.protocol import Tokenizer


def stream_text(tokenizer: Tokenizer, chunks: Iterable[Iterable[int]]) -> Iterator[str]:
  """Yields the text of each chunk of tokens; the concatenation equals `tokenizer.decode` of all tokens.

  A character with bytes in several tokens is yielded with its last byte.
  """
  decoder = text_decoder(tokenizer)
  for chunk in chunks:
    if text := decoder.decode(chunk):
      yield text
  if text := decoder.decode((), final=True):
    yield text


class TextDecoder(abc.ABC):
  """Tokens to text in pieces, whose concatenation equals `tokenizer.decode` of all tokens."""

  def __init__(self, tokenizer: Tokenizer):
    self.tokenizer = tokenizer

  @abc.abstractmethod
  def decode(self, tokens: Iterable[int], final: bool = False) -> str:
    """The text that further tokens add; an incomplete character is deferred unless they are the last ones."""


def text_decoder(tokenizer: Tokenizer) -> TextDecoder:
  """The decoder of one text."""
  return (BytesDecoder if tokenizer.is_lossless else DifferenceDecoder)(tokenizer)


class BytesDecoder(TextDecoder):
  """Of tokens whose pieces join to the text."""

  def __init__(self, tokenizer: Tokenizer):
    super().__init__(tokenizer)
    self._decoder = codecs.getincrementaldecoder('utf-8')(errors='replace')

  def decode(self, tokens, final=False):
    return self._decoder.decode(b''.join([self.tokenizer.pieces[i] for i in tokens]), final)


class DifferenceDecoder(TextDecoder):
  """Of other tokens: the text of all so far, without that of the ones before."""

  def __init__(self, tokenizer: Tokenizer):
    super().__init__(tokenizer)
    self._ids, self._yielded = [], ''

  def decode(self, tokens, final=False):
    self._ids.extend(tokens)  # `+=` of an array would add numbers
    text = self.tokenizer.decode(self._ids)
    if not final and (not text.startswith(self._yielded) or text.endswith('\ufffd')):
      return ''
    new, self._yielded = text[len(self._yielded) :], text
    return new
