"""LSTM and GRU in float64, one row and one token at a time."""

import numpy as np


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def lstm(x, W, U, b, segments, forget_bias=1.0):
  """Hochreiter & Schmidhuber 1997 with the forget gates of Gers et al. 2000 and no peepholes; h [B T F].

  x [B T D]; W [D 4 F] and U [F 4 F] hold the input gate, the forget gate, the candidate, the output gate.
  """
  out = np.zeros((*x.shape[:2], U.shape[0]))
  for row in range(len(x)):
    for document in split_documents(segments[row]):
      h, c = np.zeros((2, U.shape[0]))
      for t in document:
        i, f, g, o = (x[row, t] @ W[:, n] + h @ U[:, n] + b[n] for n in range(4))
        c = sigmoid(f + forget_bias) * c + sigmoid(i) * np.tanh(g)
        h = out[row, t] = sigmoid(o) * np.tanh(c)
  return out


def gru(x, W, U, b, segments, candidate_bias=0.0):
  """Cho et al. 2014, eq. 5-8, with the reset gate after the product, as in cuDNN and PyTorch; h [B T F].

  W [D 3 F] and U [F 3 F] hold the reset gate, the update gate, the candidate.
  """
  out = np.zeros((*x.shape[:2], U.shape[0]))
  for row in range(len(x)):
    for document in split_documents(segments[row]):
      h = np.zeros(U.shape[0])
      for t in document:
        r, z = (sigmoid(x[row, t] @ W[:, n] + h @ U[:, n] + b[n]) for n in range(2))
        n = np.tanh(x[row, t] @ W[:, 2] + b[2] + r * (h @ U[:, 2] + candidate_bias))
        h = out[row, t] = (1 - z) * n + z * h
  return out


def split_documents(segments):
  """The indices of each document's tokens, without padding."""
  return [np.flatnonzero(segments == s) for s in np.unique(segments) if s]
