"""Contextual positions in float64, one query and one head at a time (Golovneva et al. 2024)."""

import numpy as np


def bias(table, q, k, q_positions, k_positions, q_segments, k_segments):
  """q [B T H C], k [B S K C] in the order of their positions → [B H T S], zero where no key counts."""
  B, T, H, C = q.shape
  S, K = k.shape[1:3]
  out = np.zeros((B, H, T, S))
  for b, h, t in np.ndindex(B, H, T):
    count = 0.0
    for s in reversed(range(S)):
      if q_segments[b, t] == k_segments[b, s] != 0 and k_positions[b, s] <= q_positions[b, t]:
        count += 1 / (1 + np.exp(-q[b, t, h] @ k[b, s, h // (H // K)] / np.sqrt(C)))
        p = min(count, len(table) - 1)
        e = [np.interp(p, range(len(table)), column) for column in table.T]
        out[b, h, t, s] = q[b, t, h] @ e
  return out
