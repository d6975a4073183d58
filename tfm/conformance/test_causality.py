"""Causal means causal: the gradient of an output with respect to a later input is exactly zero."""

import numpy as np
import pytest

from tfm.conformance import collect
from tfm.conformance.sentences import require_finite, require_influence, require_no_influence
from tfm.conformance.tiny import LENGTH, PREFIX, Tiny, accepted
from tfm.masks.protocol import table


ROW = np.arange(LENGTH)
# Tests of the same models have equal samples: a model's gradients are compiled once for all of them.


@pytest.mark.sampled(6)
@pytest.mark.parametrize('mixer, position, mask', collect.combinations(LENGTH))
def test_no_output_depends_on_a_later_input(mixer, position, mask):
  name = f'{mixer} · {position} · {mask}'
  gradients = accepted(mixer, position, mask).influence(ROW, np.ones(LENGTH))
  require_finite(gradients, f'gradients of {name}')
  # Within a prefix, where the mask has one, every output may depend on every input.
  hidden = np.triu(np.ones_like(gradients, bool), 1)
  hidden[:, :PREFIX] &= not collect.mask(mask).required_fields
  require_no_influence(gradients, hidden, name)
  # Dependence on the same and on earlier tokens; without it the zeros above would prove nothing.
  require_influence(gradients, np.eye(LENGTH, dtype=bool), name)
  assert np.tril(gradients, -1).any(), f'{name}: no output depends on an earlier input'


@pytest.mark.sampled(6)
@pytest.mark.parametrize('mixer, position, mask', collect.combinations(LENGTH))
def test_no_output_depends_on_other_documents_or_padding(mixer, position, mask):
  segments = np.array([0] + [1] * 4 + [2] * 5 + [0] * 2)
  positions = np.array([0, *range(4), *range(5), 0, 0])
  name = f'{mixer} · {position} · {mask}, tokens 1–4 and 5–9 documents, the others padding'
  gradients = accepted(mixer, position, mask).influence(positions, segments)
  apart = (segments[:, None] != segments[None, :]) | (segments == 0)[None, :]
  require_finite(gradients, f'gradients of {name}')  # padding's own outputs included
  require_no_influence(gradients, apart & (segments > 0)[:, None], name)
  for s in (1, 2):
    within = np.tril(gradients, -1)[segments == s][:, segments == s]
    assert within.any(), f'{name}: no output of document {s} depends on an earlier input'


@pytest.mark.sampled(6)
@pytest.mark.parametrize('mixer, position, mask', collect.combinations(LENGTH))
def test_a_row_of_padding_has_finite_gradients(mixer, position, mask):
  gradients = accepted(mixer, position, mask).influence(np.zeros(LENGTH), np.zeros(LENGTH))
  require_finite(gradients, f'gradients of {mixer} · {position} · {mask} in a row of padding')


@pytest.mark.sampled(3)
@pytest.mark.parametrize('text', collect.masks(collect.specs('mask'), LENGTH))
def test_one_layer_of_softmax_depends_on_what_its_mask_shows_and_no_more(text):
  gradients = Tiny(layers=1, mixer='softmax', mask=text).influence(ROW, np.ones(LENGTH))
  arguments = collect.mask(text).bind_prefix(np.full((1, 1), PREFIX))
  shown = table(arguments, LENGTH) | np.eye(LENGTH, dtype=bool)  # a residual stream has its own input
  require_no_influence(gradients, ~shown, text)
  require_influence(gradients, shown, text)
