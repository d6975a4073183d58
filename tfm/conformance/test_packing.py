"""Packing and padding change nothing: each document gives the logits that it gives alone."""

import numpy as np
import pytest

from tfm.conformance import collect
from tfm.conformance.rows import PAD, row, rows
from tfm.conformance.sentences import require_finite, require_same_logits
from tfm.conformance.tiny import LENGTH, VOCAB, accepted


A = np.random.default_rng(0).integers(0, VOCAB, 7)
B = np.random.default_rng(1).integers(0, VOCAB, 5)


COMBINATIONS = collect.combinations(LENGTH) + collect.combinations(LENGTH, causal=False)
PACKABLE = [case for case in COMBINATIONS if collect.variant('mixer', case.values[0]).supports_packing]
OTHERS = [case for case in COMBINATIONS if case not in PACKABLE]


@pytest.fixture
def combination(mixer, position, mask):
  return accepted(mixer, position, mask)


class TestRows:
  # The first two tests have equal samples and shapes: what is compiled for one serves the other.
  @pytest.mark.sampled(9)
  @pytest.mark.parametrize('mixer, position, mask', PACKABLE)
  def test_packed_documents_have_the_logits_of_each_alone(self, combination, mixer, position, mask):
    first, second, alone = row(A, B), row(B, A), row(B, (PAD, 7))
    packed, _ = combination(*rows(first, second, alone))
    a, _ = combination(*rows(row(A)))  # no padding and no neighbour: 7 tokens, and that is all
    b = packed[2, alone[1][0]]
    for i, j, spans, expected in (
      (0, 0, first, a[0]),
      (1, 1, second, a[0]),
      (0, 1, first, b),
      (1, 0, second, b),
    ):
      situation = 'after another document in its row' if j else 'before another document in its row'
      require_same_logits(packed[i, spans[1][j]], expected, f'{mixer} · {position} · {mask}', situation)

  @pytest.mark.sampled(9)
  @pytest.mark.parametrize('mixer, position, mask', PACKABLE)
  def test_padding_on_either_side_changes_nothing(self, combination, mixer, position, mask):
    self.require_nothing_changes(combination, f'{mixer} · {position} · {mask}')

  @pytest.mark.sampled(2)
  @pytest.mark.parametrize('mixer, position, mask', OTHERS)
  def test_padding_changes_nothing_where_rows_are_not_packed(self, combination, mixer, position, mask):
    self.require_nothing_changes(combination, f'{mixer} · {position} · {mask}')

  def require_nothing_changes(self, combination, name):
    inputs = row(A, (PAD, 5)), row((PAD, 5), A), row((PAD, 2), A, (PAD, 3))
    padded, _ = combination(*rows(*inputs))
    alone, _ = combination(*rows(row(A)))
    require_finite(padded, f'logits of {name} in padded rows')
    for side, logits, (_, (span,)) in zip(('right', 'left', 'left and right'), padded, inputs):
      require_same_logits(logits[span], alone[0], name, f'with padding on the {side}')
