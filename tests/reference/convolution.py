"""Stacked gated causal convolutions in float64, tap by tap (Dauphin et al. 2017, eq. 1; residuals inside)."""

import numpy as np


def gated(x, layers, segments):
  """h [B T D]: h_t + (Σⱼ h_{t-j·d} Vⱼ + b) ⊙ σ(Σⱼ h_{t-j·d} Wⱼ + c), a layer at a time.

  layers: (d, V [taps D D], b, W, c) of each. Each document is computed separately.
  """
  out = np.zeros(x.shape)
  for row in range(len(x)):
    for s in set(segments[row]) - {0}:
      at = np.flatnonzero(segments[row] == s)
      h = x[row, at].astype(np.float64)
      for d, V, b, W, c in layers:
        h = h + convolve(h, V, b, d) / (1 + np.exp(-convolve(h, W, c, d)))
      out[row, at] = h
  return out


def convolve(h, V, b, d):
  """b + Σⱼ h_{t-j·d} Vⱼ over the tokens of the document."""
  out = np.zeros(h.shape) + b
  for t in range(len(h)):
    for j in range(len(V)):
      if t - j * d >= 0:
        out[t] += h[t - j * d] @ V[j]
  return out
