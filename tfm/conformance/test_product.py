"""Mixer × position × mask in combination: packing, padding, caches and causality at once.

Every day another third of a pairwise cover runs with the slow tests; the whole product with `make test-all`.
"""

import numpy as np
import pytest

from tfm.conformance import collect
from tfm.conformance.rows import PAD, row, rows
from tfm.conformance.sentences import require_finite, require_no_influence, require_same_logits
from tfm.conformance.tiny import LENGTH, VOCAB, accepted


pytestmark = pytest.mark.rotated(1)  # what is slow is a day's share already
A = np.random.default_rng(0).integers(0, VOCAB, 5)
B = np.random.default_rng(1).integers(0, VOCAB, 7)
# All of one shape, so that one compilation serves.
TOGETHER = rows(row(A, B), row(B, A), row((PAD, 2), A, (PAD, 5)))
ALONE = rows(row(A, (PAD, 7)), row((PAD, 5), B), row(B, (PAD, 5)))
OTHERWISE = rows(row((PAD, 7), A), row(B, (PAD, 5)), row((PAD, 3), B, (PAD, 2)))


@pytest.fixture
def passed_alone(mixer, position, mask, pytestconfig):
  """Skips what combines variants of which one failed in its plain surroundings, in pytest's last run of these
  tests: `make test`, or `make test-all`.
  """
  failed = pytestconfig.cache.get('cache/lastfailed', {})
  alone = (
    collect.surroundings(mixer),
    collect.SURROUNDINGS | dict(position=position),
    collect.SURROUNDINGS | dict(mask=mask),
  )
  for triple in alone:
    names = ' · '.join(triple.values()).encode('unicode_escape').decode()  # as pytest writes it
    for test in failed:
      if names in test and 'test_product' not in test:
        pytest.skip(f'{names} failed alone: {test}')


def check_rows(result, packs, name):
  """Neighbours and padding change nothing; returns the logits of TOGETHER."""
  together, alone, otherwise = (result(*columns)[0] for columns in (TOGETHER, ALONE, OTHERWISE))
  a, b = alone[0, :5], alone[1, 5:]
  for logits in (alone, otherwise):
    require_finite(logits, f'logits of {name}')
  for logits, expected in (
    (alone[2, :7], b),
    (otherwise[1, :7], b),
    (otherwise[2, 3:10], b),
    (otherwise[0, 7:], a),
  ):
    require_same_logits(logits, expected, name, 'with padding')
  if packs:
    require_finite(together, f'logits of {name}')
    for logits, expected in ((together[0, :5], a), (together[2, 2:7], a), (together[1, :7], b)):
      require_same_logits(logits, expected, name, 'before another document in its row')
    for logits, expected in ((together[1, 7:], a), (together[0, 5:], b)):
      require_same_logits(logits, expected, name, 'after another document in its row')
  return together


@pytest.mark.parametrize('mixer, position, mask', collect.product(LENGTH))
@pytest.mark.usefixtures('passed_alone')
def test_under_causal(mixer, position, mask):
  decoder, name = accepted(mixer, position, mask), f'{mixer} · {position} · {mask}'
  expected = check_rows(decoder, True, name)
  tokens, positions, segments = TOGETHER
  caches, start = decoder.model.init_caches(len(tokens), LENGTH + 1), 0
  for piece in (5, 5, 1, 1):  # each document's prefix stands in one of them
    here = slice(start, start + piece)
    read, caches = decoder(tokens[:, here], positions[:, here], segments[:, here], caches)
    real = segments[:, here] > 0
    require_same_logits(
      read[real], expected[:, here][real], name, f'read through a cache from index {start} on'
    )
    start += piece

  positions, segments = np.array([0, *range(4), *range(5), 0, 0]), np.array([0] + [1] * 4 + [2] * 5 + [0] * 2)
  gradients = decoder.influence(positions, segments)
  hidden = (segments[:, None] != segments[None]) | (segments == 0)[None]
  if not collect.mask(mask).required_fields:
    hidden |= np.triu(np.ones_like(hidden), 1)
  require_finite(gradients, f'gradients of {name}')
  require_no_influence(gradients, hidden & (segments > 0)[:, None], name)
  assert (
    np.diag(gradients)[segments > 0].all() and np.tril(gradients, -1)[segments == 2][:, segments == 2].any()
  ), f'{name}: an output depends on no input'


@pytest.mark.parametrize('mixer, position, mask', collect.product(LENGTH, causal=False))
@pytest.mark.usefixtures('passed_alone')
def test_looking_ahead(mixer, position, mask):
  packs = collect.variant('mixer', mixer).supports_packing
  check_rows(accepted(mixer, position, mask), packs, f'{mixer} · {position} · {mask}')
