"""Attention in float64, one query at a time (Vaswani et al. 2017, eq. 1; Ainslie et al. 2023 for groups)."""

import numpy as np


def dot_logits(q, k, scale=None):
  """q [B T H C], k [B S K C] → q·k/√C [B H T S]; query head h reads key head h // (H/K)."""
  B, T, H, C = q.shape
  _, S, K, _ = k.shape
  logits = np.empty((B, H, T, S))
  for h in range(H):
    for b in range(B):
      logits[b, h] = q[b, :, h].astype(np.float64) @ k[b, :, h // (H // K)].astype(np.float64).T
  return logits * (C**-0.5 if scale is None else scale)


def seen(predicate, q_positions, k_positions, q_segments, k_segments):
  """[B T S]: the predicate holds, both are in one document, and the key is not padding."""
  out = np.zeros((*q_positions.shape, k_positions.shape[1]), bool)
  for b, t, s in np.ndindex(*out.shape):
    out[b, t, s] = (
      predicate(q_positions[b, t], k_positions[b, s])
      and q_segments[b, t] == k_segments[b, s]
      and k_segments[b, s] != 0
    )
  return out


def weights(logits, visible, sinks=None):
  """softmax over the visible keys and the head's sink, [B H T S]; zeros for a query that sees no key."""
  out = np.zeros(logits.shape)
  for b, h, t in np.ndindex(*logits.shape[:3]):
    keys = visible[b, t]
    if keys.any():
      top = logits[b, h, t, keys].max()
      e = np.exp(logits[b, h, t, keys] - top)
      out[b, h, t, keys] = e / (e.sum() + (0 if sinks is None else np.exp(sinks[h] - top)))
  return out


def sigmoid_weights(logits, visible, offset):
  """1 / (1 + exp(-logits - offset)) where the key is visible, [B H T S]."""
  return np.where(visible[:, None], 1 / (1 + np.exp(-logits - offset)), 0)


def attend(p, v):
  """Σ_s p[b, h, t, s] · v[b, s, h // (H/K)] → [B T H C]."""
  group = p.shape[1] // v.shape[2]
  out = np.empty((v.shape[0], p.shape[2], p.shape[1], v.shape[3]))
  for b, h in np.ndindex(*p.shape[:2]):
    out[b, :, h] = p[b, h] @ v[b, :, h // group].astype(np.float64)
  return out


def weight_gradients(p, v, g):
  """(d p [B H T S], d v) of `attend` for the cotangent g [B T H C]."""
  group = p.shape[1] // v.shape[2]
  d_p, d_v = np.zeros(p.shape), np.zeros(v.shape)
  for b, h in np.ndindex(*p.shape[:2]):
    d_p[b, h] = g[b, :, h].astype(np.float64) @ v[b, :, h // group].astype(np.float64).T
    d_v[b, :, h // group] += p[b, h].T @ g[b, :, h]
  return d_p, d_v


def softmax_gradients(p, d_p):
  """(d logits, d sinks [H]): the rule of the softmax; a sink is one more logit, whose value is zero.

  A query that sees no key has no softmax, and its sink no gradient.
  """
  d_logits = p * (d_p - (p * d_p).sum(-1, keepdims=True))
  sink = np.where(p.any(-1), 1 - p.sum(-1), 0)
  return d_logits, -(sink * (p * d_p).sum(-1)).sum((0, 2))


def dot_gradients(q, k, d_logits, scale=None):
  """(d q, d k) of `dot_logits`."""
  scale, group = q.shape[-1] ** -0.5 if scale is None else scale, q.shape[2] // k.shape[2]
  d_q, d_k = np.zeros(q.shape), np.zeros(k.shape)
  for b, h in np.ndindex(*d_logits.shape[:2]):
    d_q[b, :, h] = scale * d_logits[b, h] @ k[b, :, h // group]
    d_k[b, :, h // group] += scale * d_logits[b, h].T @ q[b, :, h]
  return d_q, d_k
