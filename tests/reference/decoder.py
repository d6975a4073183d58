"""A whole pre-norm decoder in NumPy, with the parameters of an unscanned model."""

import functools

import numpy as np

from tests.reference import layers, rope
from tfm.conformance import attention


def forward(
  params, tokens, positions, segments, heads_per_key, position='rope', feed_forward='gelu', share=None
):
  """Logits [B T V] of x + f(norm(x)) blocks with causal softmax attention (Radford et al. 2019, §2.3).

  `share` is that of the values of the first layer in all others (Zhou et al. 2024); None: as gates say.
  """
  table = params['embedding']['table']
  x = table[tokens]
  if position == 'learned':
    x = x + params['position_0']['table'][positions]
  turns = [turn for _, turn in sorted(params['stack'].items())]  # layers_0, …, and the rest
  first, keys = [], {}
  for block in [turn[f'block_{i}'] for turn in turns for i in range(len(turn))]:
    convolve = functools.partial(add_canon, block, segments)
    y = convolve('mixer', norm(block['mixer_norm'], x))

    def mix_values(v):
      first.append(v)
      gate = block.get('value_residual', {}).get('gate')
      by = share if gate is None else 1 - 1 / (1 + np.exp(-(y @ gate['kernel'] + gate['bias'])))[..., None]
      return v if by is None else (1 - by) * v + by * first[0]

    x = x + mix(block['mixer'], y, positions, segments, heads_per_key, position, convolve, mix_values, keys)
    f = block['feed_forward']
    x = x + layers.feed_forward(
      feed_forward,
      convolve('feed_forward', norm(block['feed_forward_norm'], x)),
      *((f[name]['kernel'], f[name].get('bias', 0)) for name in ('up', 'down', 'gate') if name in f),
      convolve=lambda name, y: convolve(f'feed_forward_{name}', y),
    )
  x = norm(params['norm'], x)
  return x @ (params['output']['kernel'] if 'output' in params else table.T)


def norm(p, x):
  return layers.layernorm(x, p['scale'], p['bias']) if 'bias' in p else layers.rmsnorm(x, p['scale'])


def add_canon(block, segments, place, x):
  """x_t + Σ_k w_k x_{t-3+k} of the tokens of the document, if the block has a Canon layer there."""
  if f'{place}_canon' not in block:
    return x
  weight, y = block[f'{place}_canon']['convolution']['weight'], x.copy()
  for row in range(len(x)):
    for t in range(x.shape[1]):
      document = [s for s in range(t + 1) if segments[row, s] == segments[row, t]]
      for back, s in enumerate(document[:-5:-1]):
        y[row, t] += weight[3 - back] * x[row, s]
  return y


def mix(p, x, positions, segments, heads_per_key, position, convolve, mix_values, keys):
  """Causal attention within documents; without projections to keys and values, to the last `keys`."""
  y = {
    name: convolve(f'mixer_{name}', np.einsum('btd,dhc->bthc', x, p[name]['kernel']) + p[name].get('bias', 0))
    for name in 'qkv'
    if name in p
  }
  rotated = {
    name: rope.rotate(y[name], positions) if position == 'rope' else y[name] for name in 'qk' if name in y
  }
  if 'k' in p:
    keys.update(k=rotated['k'], v=mix_values(y['v']))
  q, k, v = rotated['q'], keys['k'], keys['v']
  assert q.shape[2] == heads_per_key * k.shape[2]
  visible = attention.seen(lambda q, k: k <= q, positions, positions, segments, segments)
  y = attention.attend(attention.weights(attention.dot_logits(q, k), visible), v)
  return np.einsum('bthc,hcd->btd', y, p['out']['kernel']) + p['out'].get('bias', 0)
