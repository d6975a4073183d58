"""Mixer × position × mask in combination: packing, padding, caches and causality at once.

A pairwise cover runs with the slow tests, the whole product with `make test-all`.
"""

import numpy as np
import pytest

from tests.conformance import collect
from tests.conformance.rows import PAD, row, rows
from tests.conformance.tiny import LENGTH, VOCAB, accepted


A = np.random.default_rng(0).integers(0, VOCAB, 5)
B = np.random.default_rng(1).integers(0, VOCAB, 7)
# All of one shape, so that one compilation serves.
TOGETHER = rows(row(A, B), row(B, A), row((PAD, 2), A, (PAD, 5)))
ALONE = rows(row(A, (PAD, 7)), row((PAD, 5), B), row(B, (PAD, 5)))
OTHERWISE = rows(row((PAD, 7), A), row(B, (PAD, 5)), row((PAD, 3), B, (PAD, 2)))


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def check_rows(result, packs):
  """Neighbours and padding change nothing; returns the logits of TOGETHER."""
  together, alone, otherwise = (result(*columns)[0] for columns in (TOGETHER, ALONE, OTHERWISE))
  a, b = alone[0, :5], alone[1, 5:]
  assert np.isfinite(alone).all() and np.isfinite(otherwise).all()
  for same in (alone[2, :7], otherwise[1, :7], otherwise[2, 3:10]):
    close(same, b)
  close(otherwise[0, 7:], a)
  if packs:
    assert np.isfinite(together).all()
    for same in (together[0, :5], together[1, 7:], together[2, 2:7]):
      close(same, a)
    for same in (together[0, 5:], together[1, :7]):
      close(same, b)
  return together


@pytest.mark.parametrize('mixer, position, mask', collect.product(LENGTH))
def test_under_causal(mixer, position, mask):
  decoder = accepted(mixer, position, mask)
  expected = check_rows(decoder, packs=True)
  tokens, positions, segments = TOGETHER
  caches, start = decoder.model.init_caches(len(tokens), LENGTH + 1), 0
  for piece in (5, 5, 1, 1):  # each document's prefix stands in one of them
    here = slice(start, start + piece)
    read, caches = decoder(tokens[:, here], positions[:, here], segments[:, here], caches)
    real = segments[:, here] > 0
    close(read[real], expected[:, here][real])
    start += piece

  positions, segments = np.array([0, *range(4), *range(5), 0, 0]), np.array([0] + [1] * 4 + [2] * 5 + [0] * 2)
  gradients = decoder.influence(positions, segments)
  hidden = (segments[:, None] != segments[None]) | (segments == 0)[None]
  if not collect.mask(mask).required_fields:
    hidden |= np.triu(np.ones_like(hidden), 1)
  assert np.isfinite(gradients).all() and not gradients[hidden & (segments > 0)[:, None]].any()
  assert (
    np.diag(gradients)[segments > 0].all() and np.tril(gradients, -1)[segments == 2][:, segments == 2].any()
  )


@pytest.mark.parametrize('mixer, position, mask', collect.product(LENGTH, causal=False))
def test_looking_ahead(mixer, position, mask):
  check_rows(accepted(mixer, position, mask), collect.variant('mixer', mixer).supports_packing)
