"""Reading through a cache: in pieces, and in a row that joins another."""

import numpy as np

from tfm.conformance.sentences import require_same_logits
from tfm.conformance.tiny import LENGTH, VOCAB


# A whole document; one padded on the left, as prompts of unequal length are; two documents in one row.
SEGMENTS = np.array([[1] * 12, [0] * 2 + [1] * 10, [1] * 5 + [2] * 7])
POSITIONS = np.array([[*range(12)], [0, 0, *range(10)], [*range(5), *range(7)]])
TOKENS = np.random.default_rng(0).integers(0, VOCAB, SEGMENTS.shape)
SLACK = 3  # a cache may be longer than what is read


def require_cached_equals_full(tiny, name, pieces=(5,) + (1,) * 7):
  """What is read through a cache, in any pieces, gives the logits of the full pass."""
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
  rows = ('one document', 'left padding', 'two documents')
  for logits, expected, segments, kind in zip(np.concatenate(read, 1), full, SEGMENTS, rows):
    real = segments > 0
    situation = f'read through a cache in pieces of {pieces}, in a row of {kind}'
    require_same_logits(logits[real], expected[real], name, situation)


def require_joined_rows_read_as_alone(tiny, name):
  """A row that joins another reads on as alone, as does the other one; both are moved to other slots on the
  way (`tfm serve`).
  """
  stack, (first, second, slots) = tiny.model.stack(), (2, 4, 12)
  positions, ones = np.broadcast_to(np.arange(slots), (2, slots)), np.ones((2, slots), np.int32)
  rows = TOKENS[:2], positions, ones
  full, _ = tiny(*rows, prefix=ones)
  _, caches = tiny(*(x[:, :first] for x in rows), stack.init_caches(2, slots), ones[:, :first])
  _, new = tiny(*(x[1:, :second] for x in rows), stack.init_caches(1, slots), ones[1:, :second])
  caches = stack.insert_caches(stack.shift_caches(caches, second - first), new, 1)
  joined, read = ([], []), np.array([first, second])
  while (read < slots).any():
    if read[1] == slots and len(joined[1]) == len(joined[0]):  # all slots are filled, and the second row ends
      caches = stack.shift_caches(caches, read[0] - slots)
    at = np.minimum(read, slots - 1)[:, None]
    tokens, segments = np.take_along_axis(TOKENS[:2], at, 1), (read < slots).astype(np.int32)[:, None]
    logits, caches = tiny(tokens, at, segments, caches, ones[:, :1])
    for i in np.flatnonzero(read < slots):
      joined[i].append(logits[i, 0])
    read = np.minimum(read + 1, slots)
  for i, (of_row, start) in enumerate(zip(joined, (first, second))):
    require_same_logits(np.array(of_row), full[i, start:], name, f'read in row {i} beside another')
