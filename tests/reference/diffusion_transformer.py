"""A diffusion transformer in NumPy from Peebles & Xie 2023, §3.2 and Fig. 3, with the parameters of an
unscanned model; one image, one patch and one head after another.
"""

import numpy as np

from tests.reference import grid, layers


def forward(params, images, times, classes, patch, heads):
  """What the model predicts [B H W N] of noisy images [B H W Q]."""
  return np.stack([one(params, *inputs, patch, heads) for inputs in zip(images, times, classes)])


def one(params, image, time, label, patch, heads):
  H, W, Q = image.shape
  rows, columns = H // patch, W // patch
  c = condition(params, time, label)
  x = []
  for row in range(rows):
    for column in range(columns):
      piece = image[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
      token = dense(params['patches'], piece.reshape(-1))
      x.append(token + grid.sinusoidal((row, column), len(token), 10_000))
  x = np.array(x)
  for _, turn in sorted(params['stack'].items()):
    x = block(turn['block_0'], x, c, heads)
  shift, scale = modulation(params['modulation'], c)
  y = dense(params['output'], plain_norm(x) * (1 + scale) + shift)
  image = np.zeros((H, W, y.shape[-1] // patch**2))
  for number, token in enumerate(y):
    row, column = divmod(number, columns)
    place = slice(row * patch, (row + 1) * patch), slice(column * patch, (column + 1) * patch)
    image[place] = token.reshape(patch, patch, -1)
  return image


def condition(params, time, label):
  """The embedded time, of 128 cosines and 128 sines, and the embedded class."""
  waves = [np.exp(-np.log(10_000) * i / 128) * time for i in range(128)]
  waves = np.array([f(wave) for f in (np.cos, np.sin) for wave in waves])
  embedded = dense(params['time_out'], layers.swish(dense(params['time_in'], waves)))
  return embedded + params['class_table']['table'][label]


def block(p, x, c, heads):
  """Attention and a feed-forward layer, each between a modulated norm and a gate."""
  shift, scale, gate = modulation(p['mixer_modulation'], c)
  x = x + gate * attend(p['mixer'], plain_norm(x) * (1 + scale) + shift, heads)
  shift, scale, gate = modulation(p['feed_forward_modulation'], c)
  hidden = layers.gelu_tanh(dense(p['feed_forward']['up'], plain_norm(x) * (1 + scale) + shift))
  return x + gate * dense(p['feed_forward']['down'], hidden)


def attend(p, x, heads):
  """Softmax attention without a mask (Vaswani et al. 2017, §3.2)."""
  T, out = len(x), p['out']['bias'].copy() + np.zeros_like(x)
  for h in range(heads):
    q, k, v = (x @ p[name]['kernel'][:, h] + p[name]['bias'][h] for name in ('q', 'k', 'v'))
    for i in range(T):
      weights = np.exp(k @ q[i] / np.sqrt(len(q[i])))
      out[i] += weights @ v / weights.sum() @ p['out']['kernel'][h]
  return out


def modulation(p, c):
  return np.einsum('d,dne->ne', layers.swish(c), p['projection']['kernel']) + p['projection']['bias']


def plain_norm(x):
  """Layer normalization without scale and bias."""
  return layers.layernorm(x, 1.0, 0.0, 1e-6)


def dense(p, x):
  return x @ p['kernel'] + p['bias']
