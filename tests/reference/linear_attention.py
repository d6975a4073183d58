"""Linear attention and the gated delta rule in float64, one token at a time."""

import numpy as np


def elu(x):
  """elu(x) + 1 (Katharopoulos et al. 2020, eq. 7)."""
  return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1


def relu(x):
  return np.maximum(x, 0)


def softmax(x):
  e = np.exp(x)
  return e / e.sum(-1, keepdims=True)


def cosformer(x, positions, length):
  """Qin et al. 2022: ReLU features, weighed by the cosine and the sine of the position; x [B T H C]."""
  angle = np.pi / 2 * np.minimum(positions, length)[..., None, None] / length
  return np.concatenate([relu(x) * np.cos(angle), relu(x) * np.sin(angle)], -1)


def favor(x, rows):
  """Choromanski et al. 2021, lemma 1, of x / C^(1/4): the positive features of the random rows [F C]."""
  out, x = np.empty((*x.shape[:-1], len(rows))), x / x.shape[-1] ** 0.25
  for i, row in enumerate(rows):
    out[..., i] = np.exp((x * row).sum(-1) - (x**2).sum(-1) / 2) / np.sqrt(len(rows))
  return out


def attend(q, k, v, rotated, segments, causal=True):
  """Su et al. (2021), eq. 19: the denominator is of φ(q), φ(k), the numerator of both `rotated`.

  q [B T H C], k and v [B T K C]; causal: Katharopoulos et al. (2020), eq. 9. Padding gives zeros.
  """
  out, group = np.zeros((*q.shape[:3], v.shape[-1])), q.shape[2] // k.shape[2]
  for b, t, h in np.ndindex(*q.shape[:3]):
    top, total = np.zeros(v.shape[-1]), 1e-6
    for s in range(t + 1 if causal else q.shape[1]):
      if segments[b, s] == segments[b, t] != 0:
        top += rotated[0][b, t, h] @ rotated[1][b, s, h // group] * v[b, s, h // group]
        total += q[b, t, h] @ k[b, s, h // group]
    out[b, t, h] = top / total
  return out


def delta_rule(q, k, v, alpha, beta, segments):
  """Yang et al. (2024), eq. 10, with the state as they write it, values by keys; and the last states.

  q, k [B T K C], v [B T H C2], alpha, beta [B T H]. Padding keeps the state, and its output is zero.
  """
  B, T, H, C2 = v.shape
  C, group = k.shape[-1], H // k.shape[2]
  out, last = np.zeros(v.shape), np.zeros((B, H, C2, C))
  for b, h in np.ndindex(B, H):
    S, document = np.zeros((C2, C)), 0
    for t in np.flatnonzero(segments[b]):
      if segments[b, t] != document:
        S, document = np.zeros((C2, C)), segments[b, t]
      key = k[b, t, h // group]
      transition = alpha[b, t, h] * (np.eye(C) - beta[b, t, h] * np.outer(key, key))
      S = S @ transition + beta[b, t, h] * np.outer(v[b, t, h], key)
      out[b, t, h] = S @ q[b, t, h // group]
    last[b, h] = S
  return out, last


def convolve(x, weight, segments):
  """Σ_k w_k ⊙ x_{t - (taps - 1 - k)} over the tokens of one document; x [B T ...], weight [taps ...]."""
  out = np.zeros(x.shape)
  for b in range(len(x)):
    for document in set(segments[b]) - {0}:
      at = np.flatnonzero(segments[b] == document)
      for i, t in enumerate(at):
        for back, w in enumerate(weight[::-1][: i + 1]):
          out[b, t] += w * x[b, at[i - back]]
  return out


def silu(x):
  return x / (1 + np.exp(-x))


def gated_delta(params, x, segments):
  """The layer of Yang et al. (2024), §3.4, on x [B T D], from a tree of parameters without biases."""

  def project(name):
    return np.einsum('btd,d...->bt...', x, params[name]['kernel'])

  q, k, v = (
    silu(convolve(project(name), params[f'{name}_convolution']['weight'], segments)) for name in 'qkv'
  )
  q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
  alpha = np.exp(-np.exp(params['A_log']) * np.log1p(np.exp(project('alpha') + params['dt_bias'])))
  y, _ = delta_rule(q / np.sqrt(q.shape[-1]), k, v, alpha, 1 / (1 + np.exp(-project('beta'))), segments)
  y = y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-6) * params['norm']['scale'] * silu(project('gate'))
  return np.einsum('bthc,hcd->btd', y, params['out']['kernel'])
