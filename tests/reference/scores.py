"""Compatibility functions in float64, one query and one key at a time, straight from the papers."""

import numpy as np


def grouped(pair, q, k):
  """q [B K G T C], k [B K S C] → `pair(query [C], key [C])` of each, [B K G T S]: a group shares its keys."""
  out = np.empty((*q.shape[:4], k.shape[2]))
  for b, h, g, t, s in np.ndindex(*out.shape):
    out[b, h, g, t, s] = pair(q[b, h, g, t].astype(np.float64), k[b, h, s].astype(np.float64))
  return out


def additive(w, u, v, q, k):
  """vᵀ tanh(W q + U k) (Bahdanau et al. 2015, app. A.1.2); w, u [hidden C], v [hidden]."""
  return v @ np.tanh(w @ q + u @ k)


def bilinear(w, q, k):
  """qᵀ W k (Luong et al. 2015, eq. 8, "general")."""
  return q @ w @ k


def cosine(temperature, q, k):
  """temperature · qᵀk / (‖q‖ ‖k‖) (Luo et al. 2018), 0 where either is zero."""
  lengths = np.sqrt(q @ q) * np.sqrt(k @ k)
  return temperature * (q @ k) / lengths if lengths else 0.0
