"""Causal means causal: the gradient of an output with respect to a later input is exactly zero."""

import numpy as np
import pytest

from tests.conformance import collect
from tests.conformance.tiny import LENGTH, PREFIX, Tiny, accepted
from tfm.masks.protocol import table


ROW = np.arange(LENGTH)


@pytest.mark.parametrize('mixer, position, mask', collect.combinations(LENGTH))
def test_no_output_feels_a_later_input(mixer, position, mask):
  gradients = accepted(mixer, position, mask).influence(ROW, np.ones(LENGTH))
  assert np.isfinite(gradients).all()
  # Within a prefix, where the mask knows one, everything may be felt.
  ahead = np.triu(gradients, 1)
  assert not ahead[:, PREFIX:].any() and (not ahead.any() or collect.mask(mask).required_fields)
  # Each token feels itself, and what came before is felt too, or the zeros above would prove nothing.
  assert np.diag(gradients).all() and np.tril(gradients, -1).any()


@pytest.mark.parametrize('mixer, position, mask', collect.combinations(LENGTH))
def test_documents_and_padding_are_not_felt(mixer, position, mask):
  segments = np.array([0] + [1] * 4 + [2] * 5 + [0] * 2)
  positions = np.array([0, *range(4), *range(5), 0, 0])
  gradients = accepted(mixer, position, mask).influence(positions, segments)
  apart = (segments[:, None] != segments[None, :]) | (segments == 0)[None, :]
  real = segments > 0
  assert np.isfinite(gradients).all()  # padding's own outputs included
  assert not gradients[apart & real[:, None]].any()
  assert all(np.tril(gradients, -1)[segments == s][:, segments == s].any() for s in (1, 2))


@pytest.mark.parametrize('mixer, position, mask', collect.combinations(LENGTH))
def test_a_row_of_padding_has_finite_gradients(mixer, position, mask):
  assert np.isfinite(accepted(mixer, position, mask).influence(np.zeros(LENGTH), np.zeros(LENGTH))).all()


@pytest.mark.parametrize('text', collect.masks(collect.specs('mask'), LENGTH))
def test_one_layer_of_softmax_feels_what_its_mask_shows_and_no_more(text):
  gradients = Tiny(layers=1, mixer='softmax', mask=text).influence(ROW, np.ones(LENGTH))
  arguments = collect.mask(text).bind_prefix(np.full((1, 1), PREFIX))
  shown = table(arguments, LENGTH) | np.eye(LENGTH, dtype=bool)  # a residual stream feels itself
  np.testing.assert_array_equal(gradients > 0, shown)
