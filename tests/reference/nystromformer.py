"""Nyströmformer in float64 (Xiong et al. 2021), one row and head at a time."""

import numpy as np


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def invert(matrix, iterations):
  """Algorithm 1, with the coefficient of eq. 14 for this matrix."""
  z, one = matrix.T / (abs(matrix).sum(0).max() * abs(matrix).sum(1).max()), np.eye(len(matrix))
  for _ in range(iterations):
    z = z @ (13 * one - matrix @ z @ (15 * one - matrix @ z @ (7 * one - matrix @ z))) / 4
  return z


def attend(q, k, v, landmarks, segments, iterations, taps=None):
  """q, k, v [B T H C], one document a row; taps [H N] → [B T H C], zeros for padding."""
  out = np.zeros(q.shape)
  for b, h in np.ndindex(q.shape[0], q.shape[2]):
    real = np.flatnonzero(segments[b])
    if not len(real):
      continue
    q_, k_, v_ = (x[b, real, h] for x in (q, k, v))
    pieces = [[t for t in range(len(real)) if t * landmarks // len(real) == m] for m in range(landmarks)]
    q_means, k_means = (np.stack([x[piece].mean(0) for piece in pieces if piece]) for x in (q_, k_))
    root = np.sqrt(q.shape[-1])
    inverse = invert(softmax(q_means @ k_means.T / root), iterations)
    out[b, real, h] = softmax(q_ @ k_means.T / root) @ inverse @ softmax(q_means @ k_.T / root) @ v_
    if taps is not None:
      for t, r in np.ndindex(len(real), taps.shape[1]):
        other = t + r - taps.shape[1] // 2
        if 0 <= other < len(real):
          out[b, real[t], h] += taps[h, r] * v_[other]
  return out
