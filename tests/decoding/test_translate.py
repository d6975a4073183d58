"""How long what is written for a text may become."""

import numpy as np
import pytest

from tests.models import pairs
from tfm.data.tokenizers.bytes import Bytes
from tfm.decoding.beam import Gnmt
from tfm.decoding.translate import translate
from tfm.decoding.unrolled import unrolled


class Letters(Bytes):
  """a is 1, b is 2, …"""

  eos_id = 0

  def encode(self, text):
    return np.array([ord(letter) - 96 for letter in text], np.int32)

  def decode(self, tokens):
    return ''.join(chr(96 + token) for token in tokens)


def lengths(position, **limits):
  model, params = unrolled(*pairs.made(position=position))
  found = dict(translate(model, params, Letters(), ['abc', 'abcdefgh'], beams=2, penalty=Gnmt(0.6), **limits))
  return [max(len(one.text) for one in found[i]) for i in range(2)]


def test_so_much_longer_than_its_source():
  assert lengths('sinusoidal', longer=2) == [4 + 2, 9 + 2]  # with the source's end


def test_no_longer_than_there_are_positions():
  assert lengths('learned', longer=50) == [pairs.LENGTH] * 2
  with pytest.raises(ValueError, match=f'at most max_tokens={pairs.LENGTH} would do'):
    lengths('learned', longer=0, max_tokens=pairs.LENGTH + 1)
