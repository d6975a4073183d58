"""A whole pre-norm decoder in NumPy, with the parameters of an unscanned model."""

import numpy as np

from tests.reference import layers, rope
from tfm.conformance import attention


def forward(params, tokens, positions, segments, heads_per_key, position='rope', feed_forward='gelu'):
  """Logits [B T V] of x + f(norm(x)) blocks with causal softmax attention (Radford et al. 2019, §2.3)."""
  table = params['embedding']['table']
  x = table[tokens]
  if position == 'learned':
    x = x + params['position_0']['table'][positions]
  stack = params['stack']
  for i in range(len(stack)):
    block = stack[f'layers_{i}']['block_0']
    x = x + mix(block['mixer'], norm(block['mixer_norm'], x), positions, segments, heads_per_key, position)
    f = block['feed_forward']
    x = x + layers.feed_forward(
      feed_forward,
      norm(block['feed_forward_norm'], x),
      *((f[name]['kernel'], f[name].get('bias', 0)) for name in ('up', 'down', 'gate') if name in f),
    )
  x = norm(params['norm'], x)
  return x @ (params['output']['kernel'] if 'output' in params else table.T)


def norm(p, x):
  return layers.layernorm(x, p['scale'], p['bias']) if 'bias' in p else layers.rmsnorm(x, p['scale'])


def mix(p, x, positions, segments, heads_per_key, position):
  """Causal attention within documents, with its four projections."""
  q, k, v = (np.einsum('btd,dhc->bthc', x, p[name]['kernel']) + p[name].get('bias', 0) for name in 'qkv')
  assert q.shape[2] == heads_per_key * k.shape[2]
  if position == 'rope':
    q, k = rope.rotate(q, positions), rope.rotate(k, positions)
  visible = attention.seen(lambda q, k: k <= q, positions, positions, segments, segments)
  y = attention.attend(attention.weights(attention.dot_logits(q, k), visible), v)
  return np.einsum('bthc,hcd->btd', y, p['out']['kernel']) + p['out'].get('bias', 0)
