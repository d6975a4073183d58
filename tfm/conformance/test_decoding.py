"""Decoding = training: what is read through a cache, in any pieces, gives the logits of the full pass."""

import jax
import numpy as np
import pytest

from tfm.conformance import collect
from tfm.conformance.sentences import require_same_logits
from tfm.conformance.tiny import LENGTH, VOCAB, accepted


# A whole document; one padded on the left, as prompts of unequal length are; two documents in one row.
SEGMENTS = np.array([[1] * 12, [0] * 2 + [1] * 10, [1] * 5 + [2] * 7])
POSITIONS = np.array([[*range(12)], [0, 0, *range(10)], [*range(5), *range(7)]])
TOKENS = np.random.default_rng(0).integers(0, VOCAB, SEGMENTS.shape)
SLACK = 3  # a cache may be longer than what is read


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
  'pieces',
  [(5,) + (1,) * 7, (5, 5, 1, 1), (1,) * 12],
  ids=['prefill then steps', 'prefill in pieces', 'steps only'],
)
@pytest.mark.parametrize('mixer, position, mask', collect.combinations(LENGTH))
def test_cached_reading_equals_the_full_pass(mixer, position, mask, pieces):
  tiny = accepted(mixer, position, mask)
  # A prefix must be read at once: so long is it that it stands in the first piece.
  prefix = np.where(SEGMENTS == 1, min(pieces[0] - 2, 3), 1).clip(1)
  full, none = tiny(TOKENS, POSITIONS, SEGMENTS, prefix=prefix)
  assert none is None
  caches = tiny.model.init_caches(len(TOKENS), LENGTH + SLACK)
  read, start = [], 0
  for piece in pieces:
    here = slice(start, start + piece)
    logits, caches = tiny(TOKENS[:, here], POSITIONS[:, here], SEGMENTS[:, here], caches, prefix[:, here])
    read.append(logits)
    start += piece
  name, rows = f'{mixer} · {position} · {mask}', ('one document', 'left padding', 'two documents')
  for logits, expected, segments, kind in zip(np.concatenate(read, 1), full, SEGMENTS, rows):
    real = segments > 0
    situation = f'read through a cache in pieces of {pieces}, in a row of {kind}'
    require_same_logits(logits[real], expected[real], name, situation)


@pytest.mark.parametrize(
  'mixer', [text for text in collect.specs('mixer') if collect.variant('mixer', text).supports_decoding]
)
def test_the_cache_keeps_its_form(mixer):
  """A loop over tokens carries the cache, so shapes and types may not change on the way."""
  tiny = accepted(**collect.surroundings(mixer))
  caches = tiny.model.init_caches(3, LENGTH + SLACK)
  _, after = tiny(TOKENS[:, :5], POSITIONS[:, :5], SEGMENTS[:, :5], caches)
  form = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (caches, after)]
  assert form[0] == form[1]
