"""Sinusoidal positions as in the paper (Vaswani et al. 2017, §3.5), in float64."""

import math

import numpy as np


def encoding(position, width, theta=10_000.0):
  """PE(position), [D]: sine and cosine alternate."""
  out = np.empty(width)
  for i in range(width // 2):
    angle = position / theta ** (2 * i / width)
    out[2 * i], out[2 * i + 1] = math.sin(angle), math.cos(angle)
  return out
