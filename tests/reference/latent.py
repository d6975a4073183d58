"""Multi-head latent attention in float64 with all keys and values computed (DeepSeek-AI 2024, eq. 9-19)."""

import numpy as np

from tests.reference import layers
from tfm.conformance import attention


def forward(p, x, positions, segments, predicate, rotate):
  """y [B T D] from the parameters of the mixer; `rotate(x [B T H C], positions)` is the position's."""
  rank, H, C = p['k_up'].shape
  B, T, _ = x.shape
  down = x @ p['down']['kernel'] + p['down'].get('bias', 0)
  c = layers.rmsnorm(down[..., :rank], p['norm']['scale'])
  shared = rotate(down[..., None, rank:], positions)
  source = x
  if 'q_down' in p:
    source = layers.rmsnorm(x @ p['q_down']['kernel'] + p['q_down'].get('bias', 0), p['q_norm']['scale'])
  q = np.einsum('btd,dhc->bthc', source, p['q']['kernel']) + p['q'].get('bias', 0)
  q = np.concatenate([q[..., :C], rotate(q[..., C:], positions)], -1)
  k, v = np.empty((B, T, H, q.shape[-1])), np.empty((B, T, H, p['v_up'].shape[-1]))
  for h in range(H):
    k[:, :, h] = np.concatenate([c @ p['k_up'][:, h], shared[:, :, 0]], -1)
    v[:, :, h] = c @ p['v_up'][:, h]
  visible = attention.seen(predicate, positions, positions, segments, segments)
  y = attention.attend(attention.weights(attention.dot_logits(q, k), visible), v)
  return np.einsum('bthc,hcd->btd', y, p['out']['kernel']) + p['out'].get('bias', 0)
