"""Streamed text is the text, and never half a character."""

import numpy as np
import pytest

from tfm.data.tokenizers.bytes import Bytes
from tfm.data.tokenizers.char import Char
from tfm.decoding import text


WORDS = 'naïve 東京 🦜🏽 \u0000 end'


@pytest.mark.parametrize('tokenizer', [Bytes(), Char('aeinv ')], ids=['bytes', 'char'])
@pytest.mark.parametrize('size', [1, 2, 3, 100])
def test_characters_split_over_tokens(tokenizer, size):
  ids = tokenizer.encode(WORDS)
  chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
  shown = list(text.stream(tokenizer, chunks))
  assert ''.join(shown) == WORDS and '\ufffd' not in ''.join(shown)


def test_text_comes_as_soon_as_it_is_whole():
  """The parrot's four bytes, one by one."""
  asked = []

  def one_by_one():
    for i in 'a🦜b'.encode():
      asked.append(i)
      yield [i]

  stream = text.stream(Bytes(), one_by_one())
  assert (next(stream), len(asked)) == ('a', 1)
  assert (next(stream), len(asked)) == ('🦜', 5)


def test_any_bytes_give_what_decode_gives():
  """A model may write bytes that are no UTF-8, and stop inside a character."""
  random = np.random.default_rng(0)
  for _ in range(300):
    ids = random.choice([0x41, 0x80, 0xC3, 0xA9, 0xE6, 0x9D, 0xF0, 0x9F, 0xFF, 256], random.integers(0, 12))
    chunks = np.split(ids, np.sort(random.integers(0, len(ids) + 1, 3)))
    assert ''.join(text.stream(Bytes(), chunks)) == Bytes().decode(ids)
