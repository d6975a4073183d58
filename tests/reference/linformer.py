"""Linformer in float64 (Wang et al. 2020, eq. 7), one row, one head and one query at a time."""

import numpy as np


def attend(q, k, v, E, F, positions, segments):
  """softmax(q (E K)ᵀ / √C) (F V), [B T H C]; zeros for a query that is padding.

  q [B T H C], k and v [B S K C], one document a row; E and F [length k], a row for every position.
  """
  B, T, H, C = q.shape
  out = np.zeros((B, T, H, v.shape[-1]))
  for b in range(B):
    real = np.flatnonzero(segments[b])
    for h in range(H):
      key_head = h // (H // k.shape[2])
      keys, values = np.zeros((2, E.shape[1], C))
      for s in real:
        keys += np.outer(E[positions[b, s]], k[b, s, key_head])
        values += np.outer(F[positions[b, s]], v[b, s, key_head])
      for t in real:
        e = np.exp(keys @ q[b, t, h] / np.sqrt(C))
        out[b, t, h] = e / e.sum() @ values
  return out
