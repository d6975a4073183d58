"""Packing and padding change nothing: each document gives the logits that it gives alone."""

import numpy as np
import pytest

from tests.conformance import collect
from tests.conformance.rows import PAD, row, rows
from tests.conformance.tiny import LENGTH, VOCAB, accepted


A = np.random.default_rng(0).integers(0, VOCAB, 7)
B = np.random.default_rng(1).integers(0, VOCAB, 5)


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.fixture
def combination(mixer, position, mask):
  return accepted(mixer, position, mask)


@pytest.mark.parametrize(
  'mixer, position, mask', collect.combinations(LENGTH) + collect.combinations(LENGTH, causal=False)
)
class TestRows:
  def test_packed_documents_give_what_each_gives_alone(self, combination, mixer):
    if not collect.variant('mixer', mixer).supports_packing:
      pytest.skip('the config is refused: test_examples')
    first, second, alone = row(A, B), row(B, A), row(B, (PAD, 7))
    packed, _ = combination(*rows(first, second, alone))
    a, _ = combination(*rows(row(A)))  # no padding and no neighbour: 7 tokens, and that is all
    close(packed[0, first[1][0]], a[0])
    close(packed[1, second[1][1]], a[0])
    close(packed[0, first[1][1]], packed[2, alone[1][0]])
    close(packed[1, second[1][0]], packed[2, alone[1][0]])

  def test_padding_on_either_side_changes_nothing(self, combination):
    inputs = row(A, (PAD, 5)), row((PAD, 5), A), row((PAD, 2), A, (PAD, 3))
    padded, _ = combination(*rows(*inputs))
    alone, _ = combination(*rows(row(A)))
    assert np.isfinite(padded).all()
    for logits, (_, (span,)) in zip(padded, inputs):
      close(logits[span], alone[0])
