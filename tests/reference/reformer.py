"""LSH attention in float64 as tfm defines it (Kitaev et al. 2020, §2), one pair of tokens at a time."""

import numpy as np


def bucket(q, R):
  """The nearest of the columns of R [C F] and of their opposites."""
  return int(np.argmax([*(q @ R), *(-q @ R)]))


def find_partners(buckets, positions, segments, chunk):
  """[T T], one round: in one document and bucket, less than `chunk` ranks apart."""
  T = len(buckets)

  def alike(t, s):
    return segments[t] == segments[s] != 0 and buckets[t] == buckets[s]

  rank = [sum(alike(t, s) and positions[s] < positions[t] for s in range(T)) for t in range(T)]
  return np.array([[alike(t, s) and abs(rank[t] - rank[s]) < chunk for s in range(T)] for t in range(T)])


def attend(q, v, visible):
  """Softmax over the visible keys, which are unit queries; a token sees itself only if it sees no other."""
  out = np.zeros(v.shape)
  for t in range(len(q)):
    keys = [s for s in np.flatnonzero(visible[t]) if s != t] or [s for s in [t] if visible[t, t]]
    if keys:
      e = np.exp([q[t] @ q[s] / np.linalg.norm(q[s]) for s in keys])
      out[t] = e / e.sum() @ v[keys]
  return out


def forward(p, x, positions, segments, predicate, rotations, chunk):
  """y [B T D]; rotations [H C rounds F]."""
  q, v = (np.einsum('btd,dhc->bthc', x, p[name]['kernel']) + p[name].get('bias', 0) for name in ('qk', 'v'))
  y = np.zeros(q.shape)
  for b in range(x.shape[0]):
    shown = np.array([[predicate(t, s) for s in positions[b]] for t in positions[b]])
    for h in range(q.shape[2]):
      rounds = [[bucket(token, R) for token in q[b, :, h]] for R in np.moveaxis(rotations[h], 1, 0)]
      candidates = np.any([find_partners(buckets, positions[b], segments[b], chunk) for buckets in rounds], 0)
      y[b, :, h] = attend(q[b, :, h], v[b, :, h], candidates & shown)
  return np.einsum('bthc,hcd->btd', y, p['out']['kernel']) + p['out'].get('bias', 0)
