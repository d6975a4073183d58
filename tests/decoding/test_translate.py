"""Which texts are translated together, and the maximum length of a translation."""

import numpy as np
import pytest

from tests.models import pairs
from tfm.data.tokenizers.bytes import Bytes
from tfm.decoding.beam import BeamSearch, Gnmt
from tfm.decoding.translate import translate
from tfm.decoding.unroll_layers import unroll_encoder, unroll_layers


class Letters(Bytes):
  """a is 1, b is 2, …"""

  eos_id = 0

  def encode(self, text):
    return np.array([ord(letter) - 96 for letter in text], np.int32)

  def decode(self, tokens):
    return ''.join(chr(96 + token) for token in tokens)


def lengths(position, **limits):
  model, params = unroll_layers(*pairs.make_model(position=position))
  results = dict(
    translate(
      model, params, Letters(), ['abc', 'abcdefgh'], settings=BeamSearch(beams=2, penalty=Gnmt(0.6)), **limits
    )
  )
  return [max(len(one.text) for one in results[i]) for i in range(2)]


def test_an_encoder_without_scan_is_the_same_function():
  model, params = pairs.make_model()
  flat, flat_params = unroll_encoder(model, params)
  assert set(flat_params['encoder']['stack']) == {'layers_0', 'layers_1'}
  assert unroll_encoder(flat, flat_params)[0] is flat
  source, target = (np.random.default_rng(i).integers(1, 9, (2, 8)).astype(np.int32) for i in range(2))
  here = pairs.context(np.ones((2, 8)))
  np.testing.assert_allclose(
    pairs.logits(flat, flat_params, target, here, source, here),
    pairs.logits(model, params, target, here, source, here),
    rtol=1e-5,
    atol=1e-6,
  )


def test_max_extra_tokens_limits_the_length():
  assert lengths('sinusoidal', max_extra_tokens=2) == [4 + 2, 9 + 2]  # including the source's end token


def test_positions_limit_the_length():
  assert lengths('learned', max_extra_tokens=50) == [pairs.LENGTH] * 2
  with pytest.raises(ValueError, match=f'use at most max_tokens={pairs.LENGTH}'):
    lengths('learned', max_extra_tokens=0, max_tokens=pairs.LENGTH + 1)


@pytest.mark.slow
def test_each_text_is_translated_once_the_shortest_first():
  model, params = unroll_layers(*pairs.make_model())
  texts, options = (
    ['abc', 'a', 'ab'],
    dict(settings=BeamSearch(beams=2, penalty=Gnmt(0.6)), max_extra_tokens=1),
  )
  in_batches, at_once = (
    list(translate(model, params, Letters(), texts, rows=rows, **options)) for rows in (2, 3)
  )
  assert [i for i, _ in in_batches] == [1, 2, 0]
  assert [[one.text for one in found] for _, found in in_batches] == [
    [one.text for one in found] for _, found in at_once
  ]
