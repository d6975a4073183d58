"""Attention with separate projections for global tokens, in float64 (Beltagy et al. 2020, §3.1)."""

import numpy as np

from tfm.conformance import attention


def forward(p, x, positions, segments, predicate, global_tokens, rotate, global_mask=None):
  """y [B T D]: each query uses the projections of its kind, over all keys that the predicate shows it.

  Tokens of `global_mask`, bool [B T], are global: they see all of their document, and all of it sees them.
  """
  visible = attention.seen(predicate, positions, positions, segments, segments)
  is_global = positions < global_tokens if global_mask is None else global_mask
  if global_mask is not None:
    document = attention.seen(lambda q, k: True, positions, positions, segments, segments)
    visible = visible | document & (global_mask[:, :, None] | global_mask[:, None, :])
  outputs = []
  for kind in ('', '_global'):
    projections = [p[name + kind] for name in 'qkv']
    q, k, v = (np.einsum('btd,dhc->bthc', x, p_['kernel']) + p_.get('bias', 0) for p_ in projections)
    logits = attention.dot_logits(rotate(q, positions), rotate(k, positions))
    outputs.append(attention.attend(attention.weights(logits, visible), v))
  y = np.array(outputs[0])
  for b, t in np.ndindex(*positions.shape):
    if is_global[b, t]:
      y[b, t] = outputs[1][b, t]
  return np.einsum('bthc,hcd->btd', y, p['out']['kernel']) + p['out'].get('bias', 0)
