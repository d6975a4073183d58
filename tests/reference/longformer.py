"""Attention with projections apart for global tokens, in float64 (Beltagy et al. 2020, §3.1)."""

import numpy as np

from tests.reference import attention


def forward(p, x, positions, segments, predicate, global_tokens, rotate, reported=None):
  """y [B T D]: each query by the projections of its kind, over all that the predicate shows it.

  Tokens that are `told`, bool [B T], are the global ones, see all of their document and are seen by all of
  it.
  """
  visible = attention.seen(predicate, positions, positions, segments, segments)
  is_global = positions < global_tokens if reported is None else reported
  if reported is not None:
    document = attention.seen(lambda q, k: True, positions, positions, segments, segments)
    visible = visible | document & (reported[:, :, None] | reported[:, None, :])
  of_kind = []
  for kind in ('', '_global'):
    of = [p[name + kind] for name in 'qkv']
    q, k, v = (np.einsum('btd,dhc->bthc', x, to['kernel']) + to.get('bias', 0) for to in of)
    logits = attention.dot_logits(rotate(q, positions), rotate(k, positions))
    of_kind.append(attention.attend(attention.weights(logits, visible), v))
  y = np.array(of_kind[0])
  for b, t in np.ndindex(*positions.shape):
    if is_global[b, t]:
      y[b, t] = of_kind[1][b, t]
  return np.einsum('bthc,hcd->btd', y, p['out']['kernel']) + p['out'].get('bias', 0)
