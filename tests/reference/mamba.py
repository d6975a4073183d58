"""Mamba (Gu & Dao 2023, alg. 2) and Mamba-2 (Dao & Gu 2024, §7.1) in float64, for one document."""

import numpy as np


def convolution(x, weight, bias=0.0, dilation=1):
  """x [T …] → Σ_k weight[k] · x[t - (taps - 1 - k) · dilation] + bias; zeros before the first token."""
  y = np.zeros(x.shape) + bias
  for t in range(len(x)):
    for k in range(len(weight)):
      source = t - (len(weight) - 1 - k) * dilation
      if source >= 0:
        y[t] += weight[k].astype(np.float64) * x[source]
  return y


def silu(x):
  return x / (1 + np.exp(-x))


def softplus(x):
  return np.logaddexp(0, x)


def selective_scan(x, delta, a, b, c):
  """x, delta [T I], a [I N], b, c [T N] → y [T I]: h ← exp(Δ A) h + Δ B x, y = C · h."""
  h, y = np.zeros(a.shape), np.zeros(x.shape)
  for t in range(len(x)):
    h = np.exp(delta[t][:, None] * a) * h + (delta[t] * x[t])[:, None] * b[t]
    y[t] = h @ c[t]
  return y


def mamba(p, x):
  """The block on x [T D], from parameters named as the mixer's."""
  p = float64(p)
  N = p['A_log'].shape[1]
  rank = len(p['dt_proj'])
  u, z = linear(p['x'], x), linear(p['z'], x)
  u = silu(convolution(u, **p['convolution']))
  selected = u @ p['x_proj']
  delta = softplus(selected[:, :rank] @ p['dt_proj'] + p['dt_bias'])
  y = selective_scan(u, delta, -np.exp(p['A_log']), selected[:, rank : rank + N], selected[:, rank + N :])
  return linear(p['out'], (y + p['D'] * u) * silu(z))


def state_space_dual(x, delta, a, b, c):
  """x [T H C], delta [T H], a [H], b, c [T K N] → y [T H C]; head h reads group h // (H/K)."""
  T, H, C = x.shape
  y = np.zeros(x.shape)
  for head in range(H):
    group = head // (H // b.shape[1])
    h = np.zeros((C, b.shape[2]))
    for t in range(T):
      h = np.exp(delta[t, head] * a[head]) * h + delta[t, head] * np.outer(x[t, head], b[t, group])
      y[t, head] = h @ c[t, group]
  return y


def mamba2(p, x, epsilon=1e-5):
  """The block on x [T D], from parameters named as the mixer's."""
  p = float64(p)
  z, delta = linear(p['z'], x), softplus(linear(p['dt'], x) + p['dt_bias'])
  u, b, c = (silu(convolution(linear(p[n], x), **p[f'{n}_convolution'])) for n in 'xBC')
  y = state_space_dual(u, delta, -np.exp(p['A_log']), b, c) + p['D'][:, None] * u
  y = y * silu(z)
  groups = y.reshape(len(y), b.shape[1], -1)
  groups = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + epsilon)
  return linear(p['out'], (groups.reshape(y.shape) * p['scale']).reshape(len(y), -1))


def linear(p, x):
  """x · W + b, over the leading axes of W whose product is the last axis of x: W [H C D] takes x [T H·C]."""
  kernel = p['kernel']
  inputs = next(n for n in range(1, kernel.ndim) if np.prod(kernel.shape[:n]) == x.shape[-1])
  return np.tensordot(x, kernel.reshape(x.shape[-1], *kernel.shape[inputs:]), 1) + p.get('bias', 0.0)


def float64(tree):
  return {
    name: float64(value) if isinstance(value, dict) else np.asarray(value, np.float64)
    for name, value in tree.items()
  }
