"""A mixture of experts, token by token and choice by choice, in float64."""

import math

import numpy as np


def softmax(r):
  e = np.exp(r - r.max())
  return e / e.sum()


def weights(x, valid, router, k, normalize=True, capacity=None, bias=None, gate='softmax'):
  """[B, T, E]: the weight of each expert's output, 0 where it is not chosen.

  Top k of x · router (Mixtral, §2.1; `normalize` off: Switch, eq. 2). With a capacity the first choices
  of a row are placed in order, then the second ones, …, while an expert has room (GShard, alg. 1). With a
  bias it is the top k of probability + bias, and none of it in the weights (Wang et al. 2024, eq. 3). With
  the gate 'sigmoid' it is that of r instead of the softmax (DeepSeek-V3, eq. 13 to 15).
  """
  B, T, E = *x.shape[:2], router.shape[1]
  g = np.zeros((B, T, E))
  for b in range(B):
    room = np.full(E, T if capacity is None else math.ceil(capacity * k * T / E))
    for j in range(k):
      for t in range(T):
        r = x[b, t] @ router
        p = softmax(r) if gate == 'softmax' else 1 / (1 + np.exp(-r))
        score = p if bias is None else p + bias
        chosen = sorted(range(E), key=lambda i: -score[i])[:k]
        i = chosen[j]
        if valid[b, t] and room[i] > 0:
          room[i] -= 1
          g[b, t, i] = p[i] / p[chosen].sum() if normalize else p[i]
  return g


def weights_by_experts(x, valid, router, capacity):
  """[B, T, E]: as `weights`, each expert taking the ⌈capacity n / E⌉ of n tokens with its greatest
  probabilities (Zhou et al. 2022, §3.2).
  """
  g, E = np.zeros((*x.shape[:2], router.shape[1])), router.shape[1]
  for b in range(len(x)):
    tokens = np.flatnonzero(valid[b])
    p = np.array([softmax(x[b, t] @ router) for t in tokens])
    for i in range(E):
      for j in sorted(range(len(tokens)), key=lambda j: -p[j, i])[: math.ceil(capacity * len(tokens) / E)]:
        g[b, tokens[j], i] = p[j, i]
  return g


def mixture(x, g, expert):
  """Σ_i g_i · expert(i, x) over the chosen experts."""
  y = np.zeros_like(x)
  for b, t, i in zip(*np.nonzero(g)):
    y[b, t] += g[b, t, i] * expert(i, x[b, t])
  return y


def losses(x, valid, router, k, gate='softmax'):
  """E Σ f P (Switch, eq. 4, f counting k choices a token) and the mean of log²Σ exp r (ST-MoE, eq. 5); with
  the gate 'sigmoid' P is that of r over its sum (DeepSeek-V3, eq. 19).
  """
  E = router.shape[1]
  f, p, z, n = np.zeros(E), np.zeros(E), 0.0, valid.sum()
  for token in x[valid]:
    r = token @ router
    f[sorted(range(E), key=lambda i: -r[i])[:k]] += 1 / n
    s = np.exp(r) if gate == 'softmax' else 1 / (1 + np.exp(-r))
    p += s / s.sum() / n
    z += np.log(np.exp(r).sum()) ** 2 / n
  return E * (f * p).sum(), z
