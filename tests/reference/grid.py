"""Positions on a grid as the papers write them, token by token, in float64."""

import numpy as np


def place(position, columns, before):
  """(row, column) of a token; None before the grid."""
  return None if position < before else divmod(position - before, columns)


def sinusoidal(at, width, theta):
  """[D] of one (row, column): sines, then cosines, of the row, then of the column."""
  if at is None:
    return np.zeros(width)
  waves = [theta ** (-i / (width / 4)) for i in range(width // 4)]
  return np.array([f(axis * wave) for axis in at for f in (np.sin, np.cos) for wave in waves])


def rotate(x, at, theta, interleaved):
  """x [C] of one (row, column): the row rotates the first half of the pairs, the column the other."""
  C, out = len(x), np.array(x, np.float64)
  if at is None:
    return out
  for i in range(C // 2):
    axis, wave = at[i // (C // 4)], theta ** (-(i % (C // 4)) / (C / 4))
    pair = [2 * i, 2 * i + 1] if interleaved else [i, i + C // 2]
    z = (out[pair[0]] + 1j * out[pair[1]]) * np.exp(1j * axis * wave)
    out[pair] = z.real, z.imag
  return out


def weights(new, old, kernel):
  """[new, old]: the weight of each old point in a new one. Points are the centres of equal parts of a line;
  points outside have no weight, and the others sum to 1.
  """
  out = np.zeros((new, old))
  for i in range(new):
    centre = (i + 0.5) * old / new - 0.5
    for j in range(old):
      out[i, j] = kernel(abs(centre - j))
    out[i] /= out[i].sum()
  return out


def linear(d):
  return max(0.0, 1 - d)


def cubic(d):
  """Keys 1981, a = -1/2."""
  return 1.5 * d**3 - 2.5 * d**2 + 1 if d < 1 else -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2 if d < 2 else 0.0
