"""The first Transformer in NumPy (Vaswani et al. 2017, §3), with the parameters of an unscanned model."""

import numpy as np

from tests.reference import layers, sinusoidal
from tfm.conformance import attention


def forward(params, source, source_segments, target, segments):
  """Logits [B T V]; positions count the tokens of a row, in which padding comes last."""
  memory = run(params['encoder'], embed(params, source), source_segments)
  x = run(params, embed(params, target), segments, memory, source_segments)
  return x @ params['embedding']['table'].T


def embed(params, tokens):
  """√D · E[token] + PE(position) (§3.4, §3.5)."""
  table = params['embedding']['table']
  width = table.shape[1]
  places = np.stack([sinusoidal.encoding(t, width) for t in range(tokens.shape[1])])
  return np.sqrt(width) * table[tokens] + places


def run(params, x, segments, memory=None, memory_segments=None, activation='relu'):
  """The blocks, each sublayer being norm(x + f(x)) (§3.1); a decoder's are those with a memory."""
  stack = params['stack']
  for i in range(len(stack)):
    block = stack[f'layers_{i}']['block_0']
    x = add(block, 'mixer', x, attend(block['mixer'], x, segments, x, segments, causal=memory is not None))
    if memory is not None:
      x = add(block, 'cross', x, attend(block['cross'], x, segments, memory, memory_segments, causal=False))
    f = block['feed_forward']
    x = add(
      block,
      'feed_forward',
      x,
      layers.feed_forward(activation, x, *((f[name]['kernel'], f[name]['bias']) for name in ('up', 'down'))),
    )
  return x


def add(block, name, x, y):
  norm = block[f'{name}_norm']
  return layers.layernorm(x + y, norm['scale'], norm['bias'])


def attend(p, x, segments, memory, memory_segments, causal):
  """Multi-head attention (§3.2.2)."""
  q = np.einsum('btd,dhc->bthc', x, p['q']['kernel']) + p['q']['bias']
  k, v = (np.einsum('btd,dhc->bthc', memory, p[name]['kernel']) + p[name]['bias'] for name in 'kv')
  places = [np.broadcast_to(np.arange(s.shape[1]), s.shape) for s in (segments, memory_segments)]
  visible = attention.seen(lambda q, k: k <= q or not causal, *places, segments, memory_segments)
  y = attention.attend(attention.weights(attention.dot_logits(q, k), visible), v)
  return np.einsum('bthc,hcd->btd', y, p['out']['kernel']) + p['out']['bias']
