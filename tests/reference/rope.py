"""Rotary positions, both ways the paper writes them (Su et al. 2021, eq. 12, 15 and 34), in float64."""

import cmath

import numpy as np


def rotate(x, positions, theta=10_000.0):
  """x [B T H C]: the pair (i, i + C/2) turned by the 2 × 2 rotation matrix of angle m · theta^(-2i/C)."""
  C, out = x.shape[-1], np.empty(x.shape)
  for b, t, h in np.ndindex(*x.shape[:3]):
    for i in range(C // 2):
      angle = positions[b, t] * theta ** (-2 * i / C)
      matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
      out[b, t, h, [i, i + C // 2]] = matrix @ x[b, t, h, [i, i + C // 2]]
  return out


def rotate_complex(x, positions, theta=10_000.0):
  """The same as a product of complex numbers: (x₁ + i x₂) · exp(i m θ)."""
  C, out = x.shape[-1], np.empty(x.shape)
  for b, t, h in np.ndindex(*x.shape[:3]):
    for i in range(C // 2):
      turn = cmath.exp(1j * positions[b, t] * theta ** (-2 * i / C))
      z = complex(x[b, t, h, i], x[b, t, h, i + C // 2]) * turn
      out[b, t, h, i], out[b, t, h, i + C // 2] = z.real, z.imag
  return out
