"""Special tokens after a tokenizer's vocabulary: encoded and decoded by their names."""

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
  extended = extend_tokenizer(char, NAMES)
  assert extended.vocab_size == char.vocab_size + 2 and extended.eos_id == char.eos_id
  text = 'a<extra_id_1>b <extra_id_0>'
  ids = extended.encode(text).tolist()
  assert ids == [*char.encode('a'), char.vocab_size + 1, *char.encode('b '), char.vocab_size]
  assert extended.decode(ids) == text
  np.testing.assert_array_equal(extended.token_bytes, [*char.token_bytes, 0, 0])


def test_without_names_the_tokenizer_is_unchanged(char):
  assert extend_tokenizer(char, ()) is char
  assert base_tokenizer(extend_tokenizer(char, NAMES)) is char and base_tokenizer(char) is char
  # A corpus is encoded by the tokenizer itself, to which a name is a text as any.
  assert char.decode(char.encode(NAMES[0])) == NAMES[0]


def test_the_space_before_a_word_is_its_token():
  spaced = SentencePiece(size=280, kind='bpe').train(['the cat sat on the mat ' * 50])
  extended = extend_tokenizer(spaced, ('<mask>',))
  assert extended.encode('the <mask> sat').tolist() == [
    *spaced.encode('the'),
    spaced.vocab_size,
    *spaced.encode(' sat'),
  ]
  assert extended.encode('<mask>').tolist() == [spaced.vocab_size]
  assert extended.encode('').tolist() == []
