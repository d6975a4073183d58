"""Streamed text equals decoded text and never splits a character."""

import numpy as np
import pytest

from tfm.data.tokenizers.bytes import Bytes
from tfm.data.tokenizers.char import Char
from tfm.decoding import streaming_text


WORDS = 'naïve 東京 🦜🏽 \u0000 end'


class WholeBytes(Bytes):
  """Its text is that of all tokens at once, as of published tokenizers."""

  is_lossless = False


@pytest.mark.parametrize(
  'tokenizer', [Bytes(), Char(alphabet='aeinv '), WholeBytes()], ids=['bytes', 'char', 'whole']
)
@pytest.mark.parametrize('size', [1, 2, 3, 100])
def test_characters_split_over_tokens(tokenizer, size):
  ids = tokenizer.encode(WORDS)
  chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
  parts = list(streaming_text.stream_text(tokenizer, chunks))
  assert ''.join(parts) == WORDS and '\ufffd' not in ''.join(parts)


@pytest.mark.parametrize('tokenizer', [Bytes(), WholeBytes()], ids=['bytes', 'whole'])
def test_a_character_is_yielded_with_its_last_byte(tokenizer):
  """The four bytes of the parrot, one by one."""
  consumed = []

  def one_by_one():
    for i in 'a🦜b'.encode():
      consumed.append(i)
      yield [i]

  stream = streaming_text.stream_text(tokenizer, one_by_one())
  assert (next(stream), len(consumed)) == ('a', 1)
  assert (next(stream), len(consumed)) == ('🦜', 5)


def test_invalid_bytes_stream_as_they_decode():
  """A model may produce bytes that are not UTF-8, and stop inside a character."""
  random = np.random.default_rng(0)
  for _ in range(300):
    ids = random.choice([0x41, 0x80, 0xC3, 0xA9, 0xE6, 0x9D, 0xF0, 0x9F, 0xFF, 256], random.integers(0, 12))
    chunks = np.split(ids, np.sort(random.integers(0, len(ids) + 1, 3)))
    assert ''.join(streaming_text.stream_text(Bytes(), chunks)) == Bytes().decode(ids)
