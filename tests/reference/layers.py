"""Norms, activations and feed-forward layers, straight from their papers, in float64."""

import math

import numpy as np


erf = np.vectorize(math.erf)


def layernorm(x, scale, bias=0.0, epsilon=1e-5):
  """Ba et al. 2016, eq. 4."""
  mean = x.mean(-1, keepdims=True)
  variance = ((x - mean) ** 2).mean(-1, keepdims=True)
  return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


def rmsnorm(x, scale, epsilon=1e-6):
  """Zhang & Sennrich 2019, eq. 4."""
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def relu(x):
  return np.maximum(x, 0)


def gelu(x):
  """x Φ(x) (Hendrycks & Gimpel 2016)."""
  return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
  """Its approximation, §2 of the same."""
  return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swish(x):
  """x σ(x) (Ramachandran et al. 2017, β = 1)."""
  return x / (1 + np.exp(-x))


def quick_gelu(x):
  """x σ(1.702 x), the other approximation of §2."""
  return x / (1 + np.exp(-1.702 * x))


def relu_squared(x):
  """relu(x)² (So et al. 2021, §4.1)."""
  return np.where(x > 0, x * x, 0)


def dyt(x, alpha, scale, bias=0.0):
  """Zhu et al. 2025, eq. 1."""
  return scale * np.tanh(alpha * x) + bias


PLAIN = {
  'relu': relu,
  'relu_squared': relu_squared,
  'gelu': gelu,
  'gelu_tanh': gelu_tanh,
  'quick_gelu': quick_gelu,
  'silu': swish,
}
GATED = {'reglu': relu, 'geglu': gelu, 'geglu_tanh': gelu_tanh, 'swiglu': swish}  # Shazeer 2020, eq. 6


def feed_forward(name, x, up, down, gate=None, convolve=lambda name, y: y):
  """act(x W + b) V + c, or (act(x W + b) ⊙ (x U + d)) V + c; each projection is (kernel, bias)."""
  hidden = (PLAIN | GATED)[name](convolve('up', x @ up[0] + up[1]))
  if name in GATED:
    hidden = hidden * convolve('gate', x @ gate[0] + gate[1])
  return hidden @ down[0] + down[1]
