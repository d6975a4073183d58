"""Rows made of documents and padding."""

import numpy as np

from tfm.conformance.tiny import LENGTH, VOCAB


PAD = None


def row(*pieces):
  """Tokens, positions, segments of a row of documents and (PAD, n) paddings, and where each stands.

  Padding holds arbitrary tokens and positions: nobody may look at them.
  """
  tokens, positions, segments, spans = [], [], [], []
  for piece in pieces:
    padding = isinstance(piece, tuple)
    n = piece[1] if padding else len(piece)
    if not padding:
      spans.append(slice(len(tokens), len(tokens) + n))
    tokens += [(7 * i + 3) % VOCAB for i in range(n)] if padding else list(piece)
    positions += [(5 * i + 2) % LENGTH for i in range(n)] if padding else list(range(n))
    segments += [0 if padding else len(spans)] * n
  return (tokens, positions, segments), spans


def rows(*result):
  return [np.array(columns) for columns in zip(*(columns for columns, _ in result))]
