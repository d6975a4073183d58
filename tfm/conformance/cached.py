"""Reading through a cache: in pieces, in a row that joins another, and a tree of tokens."""

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
  """A row that takes the place of another among others reads on as alone, as do they; all are moved to other
  slots on the way (`tfm serve`). Shapes are those of `require_cached_equals_full`, compiled once for both.
  """
  stack, slots, start, join, joined, prompt = tiny.model.stack(), LENGTH + SLACK, 5, 9, 1, 4
  positions, ones = np.broadcast_to(np.arange(LENGTH), TOKENS.shape), np.ones(TOKENS.shape, np.int32)
  columns = TOKENS, positions, ones
  full, _ = tiny(*columns, prefix=ones)

  def read_prompts(rows, length):
    return tiny(*(x[rows, :length] for x in columns), stack.init_caches(rows.stop - rows.start, slots), 1)[1]

  caches, filled, logits = read_prompts(slice(0, 3), start), start, [[], [], []]
  read = np.full(3, start)
  while (read < LENGTH).any():
    if filled == join:
      new = read_prompts(slice(joined, joined + 1), prompt)
      caches = stack.insert_caches(caches, stack.shift_caches(new, filled - prompt), joined)
      read[joined], logits[joined] = prompt, []
    if filled == slots:  # the others have ended, and the slots before those of the joined row are free
      caches, filled = stack.shift_caches(caches, read[joined] - filled), read[joined]
    at, goes_on = np.minimum(read, LENGTH - 1)[:, None], read < LENGTH
    tokens = np.take_along_axis(TOKENS, at, 1)
    of_rows, caches = tiny(tokens, at, goes_on[:, None].astype(np.int32), caches, 1)
    for i in np.flatnonzero(goes_on):
      logits[i].append(of_rows[i, 0])
    read, filled = read + goes_on, filled + 1
  for i, of_row in enumerate(logits):
    require_same_logits(np.array(of_row), full[i, -len(of_row) :], name, f'read in row {i} beside others')
  assert len(logits[joined]) == LENGTH - prompt


def require_trees_read_as_their_paths(tiny, name):
  """Two continuations that stand side by side in one cache are read as each alone (`Context.lineage`)."""
  start, end, slots = 5, 9, LENGTH + SLACK
  positions, ones = np.broadcast_to(np.arange(LENGTH), TOKENS.shape), np.ones(TOKENS.shape, np.int32)
  other = np.where(positions < start, TOKENS, np.roll(TOKENS, 1, 0))
  assert (other[:, start] != TOKENS[:, start]).all()
  full = [tiny(tokens, positions, ones, prefix=ones)[0] for tokens in (TOKENS, other)]
  caches = tiny.model.init_caches(len(TOKENS), slots)
  _, caches = tiny(TOKENS[:, :start], positions[:, :start], ones[:, :start], caches, 1)
  lineage = np.zeros((len(TOKENS), 2, slots), bool)
  lineage[:, :, :start] = True
  for step, i in enumerate(range(start, end)):
    for path in (0, 1):
      lineage[:, path, start + 2 * step + path] = True
    both = np.stack([TOKENS[:, i], other[:, i]], 1)
    read, caches = tiny(both, np.full_like(both, i), np.ones_like(both), caches, 1, lineage.copy())
    for path in (0, 1):
      require_same_logits(read[:, path], full[path][:, i], name, f'read as path {path} of a tree of tokens')
