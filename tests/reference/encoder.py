"""BERT in NumPy (Devlin et al. 2019, and its released code), with the parameters of an unscanned model."""

import numpy as np

from tests.reference import layers
from tests.reference.encoder_decoder import run


def forward(params, tokens, types, segments):
  """Logits [B T V] of every token, and [B 2] of whether the second text follows."""
  table, places = params['embedding']['table'], params['position_0']['table']
  x = table[tokens] + params['type_embedding']['table'][types] + places[np.arange(tokens.shape[1])]
  x = run(params, norm(params['embedding_norm'], x), segments, activation='gelu')
  first = np.tanh(dense(params['next_sentence']['transform']['dense'], x[:, 0]))
  hidden = layers.gelu(dense(params['transform']['dense'], x))
  logits = norm(params['transform']['norm'], hidden) @ table.T + params['bias']['bias']
  return logits, dense(params['next_sentence']['classes'], first)


def dense(p, x):
  return x @ p['kernel'] + p['bias']


def norm(p, x):
  return layers.layernorm(x, p['scale'], p['bias'])
