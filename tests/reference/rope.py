"""Rotary positions in both forms of the paper (Su et al. 2021, eq. 12, 15 and 34), in float64, and the
scalings of their frequencies for longer texts.
"""

import cmath
import math

import numpy as np


def rotate(x, positions, theta=10_000.0, waves=None, interleaved=False, factor=1.0):
  """x [B T H C]: pair i is rotated by the angle m · waves[i], theta^(-2i/C) by default, and multiplied
  by `factor`; the pair is (i, i + len(waves)), or (2i, 2i + 1). Other channels stay."""
  waves, out = frequencies(theta, x.shape[-1]) if waves is None else waves, np.array(x)
  for b, t, h in np.ndindex(*x.shape[:3]):
    for i, wave in enumerate(waves):
      angle, pair = positions[b, t] * wave, [2 * i, 2 * i + 1] if interleaved else [i, i + len(waves)]
      matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
      out[b, t, h, pair] = factor * matrix @ x[b, t, h, pair]
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


def frequencies(theta, channels):
  """θ of each pair of channels."""
  return np.array([theta ** (-2 * i / channels) for i in range(channels // 2)])


# Scalings: the frequencies, and the factor on rotated queries and keys.


def linear(theta, channels, factor):
  """Position m / factor stands for m (Chen et al. 2023)."""
  return np.array([wave / factor for wave in frequencies(theta, channels)]), 1.0


def proportional(theta, channels, share, factor=1.0):
  """A share of the pairs, the first ones, turns (Barbero et al. 2024)."""
  turning = int(share * channels / 2)
  waves = [wave / factor if i < turning else 0 for i, wave in enumerate(frequencies(theta, channels))]
  return np.array(waves), 1.0


def hope(theta, channels, length):
  """Pairs that turn more slowly than once in `length` positions stand still (Chen et al. 2024)."""
  return np.array([wave if 2 * np.pi / wave <= length else 0 for wave in frequencies(theta, channels)]), 1.0


def dynamic(theta, channels, factor, original, length):
  """A larger base, so that the slowest wave slows down with the length (Peng et al. 2023, §3.3)."""
  longer = factor * max(length, original) / original - (factor - 1)
  return frequencies(theta * longer ** (channels / (channels - 2)), channels), 1.0


def yarn(theta, channels, factor, original, beta_fast=32, beta_slow=1):
  """By parts, with a ramp over indices: the last pair of `beta_fast` turns to the first of `beta_slow`."""

  def turns(i):
    return original * theta ** (-2 * i / channels) / (2 * np.pi)

  low = max([i for i in range(channels) if turns(i) >= beta_fast], default=0)
  high = min([i for i in range(channels) if turns(i) <= beta_slow], default=channels - 1)
  waves = []
  for i, wave in enumerate(frequencies(theta, channels)):
    slow = 0.0 if i <= low else 1.0 if i >= high else (i - low) / (high - low)
    waves.append(slow * wave / factor + (1 - slow) * wave)
  return np.array(waves), 0.1 * math.log(factor) + 1


def llama3(theta, channels, factor, low, high, original):
  """By parts, with a ramp over turns (Llama 3.1)."""
  waves = []
  for wave in frequencies(theta, channels):
    length = 2 * np.pi / wave
    if length < original / high:
      waves.append(wave)
    elif length > original / low:
      waves.append(wave / factor)
    else:
      smooth = (original / length - low) / (high - low)
      waves.append((1 - smooth) * wave / factor + smooth * wave)
  return np.array(waves), 1.0


def longrope(theta, channels, short, long, original, length):
  """A factor for each frequency (Ding et al. 2024)."""
  factors = long if length > original else short
  waves = np.array([wave / by for wave, by in zip(frequencies(theta, channels), factors, strict=True)])
  return waves, math.sqrt(1 + math.log(max(length / original, 1)) / math.log(original))


def xpos(x, positions, sign, theta, scale_base, center):
  """Neighbours turn, times ζ^(sign (m - center) / scale_base) (Sun et al. 2022); sign -1 for keys."""
  out = rotate(x, positions, waves=frequencies(theta, x.shape[-1]), interleaved=True)
  for b, t, c in np.ndindex(*x.shape[:2], x.shape[-1]):
    zeta = (2 * (c // 2) / x.shape[-1] + 0.4) / 1.4
    out[b, t, :, c] *= zeta ** (sign * (positions[b, t] - center) / scale_base)
  return out
