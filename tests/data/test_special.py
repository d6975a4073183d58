"""Special tokens behind a tokenizer's own: written and read by their names."""

import numpy as np
import pytest

from tfm.data.special_tokens import base_tokenizer, extend_tokenizer
from tfm.data.tokenizers.char import Char
from tfm.data.tokenizers.sentencepiece import SentencePiece


NAMES = '<extra_id_0>', '<extra_id_1>'


@pytest.fixture(scope='module')
def char():
  return Char().train(['ab <>_extraid01'])


def test_names_are_tokens(char):
  made = extend_tokenizer(char, NAMES)
  assert made.vocab_size == char.vocab_size + 2 and made.eos_id == char.eos_id
  text = 'a<extra_id_1>b <extra_id_0>'
  ids = made.encode(text).tolist()
  assert ids == [*char.encode('a'), char.vocab_size + 1, *char.encode('b '), char.vocab_size]
  assert made.decode(ids) == text
  np.testing.assert_array_equal(made.token_bytes, [*char.token_bytes, 0, 0])


def test_without_names_it_is_the_tokenizer(char):
  assert extend_tokenizer(char, ()) is char
  assert base_tokenizer(extend_tokenizer(char, NAMES)) is char and base_tokenizer(char) is char
  # A corpus is encoded by the tokenizer itself, to which a name is a text as any.
  assert char.decode(char.encode(NAMES[0])) == NAMES[0]


def test_the_space_before_a_word_is_its_token_s():
  spaced = SentencePiece(size=280, kind='bpe').train(['the cat sat on the mat ' * 50])
  made = extend_tokenizer(spaced, ('<mask>',))
  assert made.encode('the <mask> sat').tolist() == [
    *spaced.encode('the'),
    spaced.vocab_size,
    *spaced.encode(' sat'),
  ]
  assert made.encode('<mask>').tolist() == [spaced.vocab_size]
  assert made.encode('').tolist() == []
