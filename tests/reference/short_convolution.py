"""The gated short convolution of LFM2, straight from its formula, one token after another."""

import numpy as np


def short_convolution(params, x, segments):
  """W_out (C ⊙ convolution(B ⊙ h)); a document's tokens follow each other, whatever padding is between."""

  def project(name, x):
    return x @ params[name]['kernel'] + params[name].get('bias', 0)

  h = project('gate_before', x) * project('value', x)
  weight, bias = params['convolution']['weight'], params['convolution'].get('bias', 0)
  y = np.zeros_like(h)
  for row, segment in enumerate(segments):
    for t in np.flatnonzero(segment):
      earlier = [s for s in range(t + 1) if segment[s] == segment[t]][-len(weight) :]
      y[row, t] = bias + sum(w * h[row, s] for w, s in zip(weight[len(weight) - len(earlier) :], earlier))
  return project('out', project('gate_after', x) * y)
