"""Kinds of attention in float64 from their papers' formulas, one query and one head at a time.

Each is `(p, x, visible) → heads [B T H C]` from the parameters of the mixer, the layer's input [B T D] and
which keys each query sees, bool [B T S].
"""

import numpy as np

from tests.reference import layers
from tfm.conformance import attention


def project(p, name, x):
  """The heads of one projection."""
  return np.einsum('btd,dhc->bthc', x, p[name]['kernel']) + p[name].get('bias', 0)


def softmax(logits, visible):
  """Of the logits of one query, [S], over the keys that it sees."""
  return attention.weights(logits[None, None, None], visible[None, None])[0, 0, 0]


def gated(p, x, visible):
  """Qiu et al. 2025."""
  q, k, v = (project(p, name, x) for name in 'qkv')
  heads = attention.attend(attention.weights(attention.dot_logits(q, k), visible), v)
  return heads / (1 + np.exp(-project(p, 'gate', x)))


def differential(p, x, visible, start):
  """Ye et al. 2024; key heads 2 i and 2 i + 1 are k₁ and k₂ of a pair, and their values its V."""
  q, k, v = (project(p, name, x) for name in 'qkv')
  p = {name.removeprefix('lambda_'): value for name, value in p.items()}
  strength = np.exp(p['q1'] @ p['k1']) - np.exp(p['q2'] @ p['k2']) + start
  (B, T, H, C), K = q.shape, k.shape[2]
  pairs = []
  for pair in range(K // 2):
    for g in range(H // K):
      one, two = 2 * pair, 2 * pair + 1
      maps = [
        attention.weights(attention.dot_logits(q[:, :, [i * H // K + g]], k[:, :, [i]]), visible)
        for i in (one, two)
      ]
      values = np.concatenate([v[:, :, one], v[:, :, two]], -1)
      head = np.einsum('bts,bsc->btc', (maps[0] - strength * maps[1])[:, 0], values)
      pairs.append((1 - start) * layers.rmsnorm(head, p['norm']['scale'], 1e-5))
  return np.stack(pairs, 2).reshape(B, T, H, C)


def forgetting(p, x, visible):
  """Lin et al. 2025: the gates between key and query multiplied one by one."""
  q, k, v = (project(p, name, x) for name in 'qkv')
  gates = 1 / (1 + np.exp(-(x @ p['forget']['kernel'] + p['forget']['bias'])))
  logits = attention.dot_logits(q, k)
  for b, h, t, s in np.ndindex(*logits.shape):
    if visible[b, t, s]:
      between = [r for r in range(s + 1, t + 1) if visible[b, t, r]]
      logits[b, h, t, s] += np.log(gates[b, between, h].prod())
  return attention.attend(attention.weights(logits, visible), v)


def talking_heads(p, x, visible):
  """Shazeer et al. 2020, §3: each head's logits, and each head's weights, are mixtures of all heads'."""
  q, k, v = (project(p, name, x) for name in 'qkv')
  logits = attention.dot_logits(q, k)
  mixed = sum(logits[:, [h]] * p['mix_logits'][h].reshape(1, -1, 1, 1) for h in range(logits.shape[1]))
  weights = attention.weights(mixed, visible)
  mixed = sum(weights[:, [h]] * p['mix_weights'][h].reshape(1, -1, 1, 1) for h in range(logits.shape[1]))
  return attention.attend(mixed, v)


def stick_breaking(p, x, visible):
  """Tan et al. 2024: from the nearest earlier key on, each takes its share of what is left."""
  q, k, v = (project(p, name, x) for name in 'qkv')
  logits = attention.dot_logits(q, k)
  weights = np.zeros(logits.shape)
  for b, h, t in np.ndindex(*logits.shape[:3]):
    rest = 1.0
    for s in reversed(np.flatnonzero(visible[b, t])):
      if s != t:
        share = 1 / (1 + np.exp(-logits[b, h, t, s]))
        weights[b, h, t, s] = share * rest
        rest *= 1 - share
  return attention.attend(weights, v)


def path(p, x, visible):
  """Yang et al. 2025: the tokens after a key, up to the query, reflect it one by one."""
  q, k, v = (project(p, name, x) for name in 'qkv')
  w = project(p, 'w', x)
  w = w / np.sqrt((w * w).sum(-1, keepdims=True))
  beta = 2 / (1 + np.exp(-(x @ p['beta']['kernel'] + p['beta']['bias'])))
  logits, group = attention.dot_logits(q, k), q.shape[2] // k.shape[2]
  for b, h, t, s in np.ndindex(*logits.shape):
    if visible[b, t, s]:
      key = k[b, s, h // group].copy()
      for r in (r for r in range(s + 1, t + 1) if visible[b, t, r]):
        direction = w[b, r, h // group]
        key -= beta[b, r, h // group] * direction * (direction @ key)
      logits[b, h, t, s] = q[b, t, h] @ key / np.sqrt(q.shape[-1])
  return attention.attend(attention.weights(logits, visible), v)


def selective(p, x, visible):
  """Leviathan et al. 2024: head 0 says how much each token masks each earlier one for those after it."""
  q, k, v = (project(p, name, x) for name in 'qkv')
  logits = attention.dot_logits(q, k)
  masked = np.zeros(logits[:, 0].shape)
  for b, t, r, s in np.ndindex(*masked.shape[:2], *masked.shape[1:]):
    is_first = not visible[b, s, :s].any()
    if r < t and visible[b, t, s] and visible[b, r, s] and s != r and not is_first:
      masked[b, t, s] += max(logits[b, 0, r, s], 0)
  return attention.attend(attention.weights(logits - masked[:, None], visible), v)


def multi_token(p, x, visible, queries, keys, group):
  """Golovneva et al. 2025, with a norm without a factor of the depth."""
  q, k, v = (project(p, name, x) for name in 'qkv')
  logits = attention.dot_logits(q, k) * visible[:, None]
  B, H, T, _ = logits.shape
  taps, mixed = p['taps'].reshape(H, queries, keys), np.zeros(logits.shape)
  for b, h, t, s in np.ndindex(*logits.shape):
    for a in range(queries):
      for offset in range(-(keys // 2), (keys + 1) // 2):
        query, key = t - a, s - offset
        # The neighbours are in the document of the query, and it sees no later key.
        if query >= 0 and 0 <= key < T and visible[b, t, query] and visible[b, query, key]:
          mixed[b, h, t, s] += taps[h, a, offset + keys // 2] * logits[b, h, query, key]
  weights = attention.weights(mixed, visible)
  groups = [range(h // group * group, (h // group + 1) * group) for h in range(H)]
  weights = np.stack(
    [sum(p['mix_heads'][h, i] * weights[:, other] for i, other in enumerate(groups[h])) for h in range(H)], 1
  )
  return layers.rmsnorm(attention.attend(weights, v), p['norm']['scale'])
