"""Position biases on the logits in float64, one query, one key and one head at a time.

q [B T H C], k [B S K C], positions [B T] and [B S] → [B H T S]; query head h reads key head h // (H/K).
"""

import ml_dtypes
import numpy as np


def each(q, k, q_at, k_at, logit):
  """`logit(h, q[b, t, h], k[b, s, its head], position of the query, of the key)` for everything."""
  out = np.empty((q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
  group = q.shape[2] // k.shape[2]
  for b, h, t, s in np.ndindex(*out.shape):
    out[b, h, t, s] = logit(h, q[b, t, h], k[b, s, h // group], int(q_at[b, t]), int(k_at[b, s]))
  return out


def t5_bucket(relative, buckets, max_distance, bidirectional):
  """The bucket of k - q in whole numbers: log(n/e) / log(m/e) · far ≥ j where n^far · e^j ≥ m^j · e^far."""
  if bidirectional:
    buckets //= 2
    return t5_bucket(-abs(relative), buckets, max_distance, False) + (buckets if relative > 0 else 0)
  n, e = max(-relative, 0), buckets // 2
  if n < e:
    return n
  far = buckets - e
  steps = [j for j in range(far) if n**far * e**j >= max_distance**j * e**far]
  return e + steps[-1]


def t5(q, k, q_at, k_at, table, max_distance, bidirectional):
  """Raffel et al. 2020, §2.1; table [buckets H]."""
  return each(
    q,
    k,
    q_at,
    k_at,
    lambda h, q, k, i, j: table[t5_bucket(j - i, len(table), max_distance, bidirectional), h],
  )


def alibi_slopes(n):
  """Press et al. 2022, §3 and their footnote on numbers of heads that are no powers of two."""
  if n & (n - 1) == 0:
    return [2 ** (-8 * (i + 1) / n) for i in range(n)]
  power = 1 << (n.bit_length() - 1)
  return alibi_slopes(power) + alibi_slopes(2 * power)[0::2][: n - power]


def alibi(q, k, q_at, k_at):
  return each(q, k, q_at, k_at, lambda h, q_, k_, i, j: -alibi_slopes(q.shape[2])[h] * abs(i - j))


def bfloat16(x):
  return np.asarray(x, ml_dtypes.bfloat16)


def falcon_alibi(q, k, q_at, k_at, scale):
  """As in Falcon's code: depends on the key alone, a product of bfloat16 numbers (Almazrouei et al. 2023)."""
  return each(
    q,
    k,
    q_at,
    k_at,
    lambda h, q_, k_, i, j: scale * float(bfloat16(alibi_slopes(q.shape[2])[h]) * bfloat16(j)),
  )


def transformer_xl(q, k, q_at, k_at, u, v, kernel):
  """Dai et al. 2019, §3.3: the terms (b), (c) and (d), each as written there."""
  D, _, C = kernel.shape
  frequencies = 10000.0 ** (-np.arange(0, D, 2) / D)

  def logit(h, q, k, i, j):
    r = np.concatenate([np.sin((i - j) * frequencies), np.cos((i - j) * frequencies)])
    projected = kernel[:, h].T @ r
    return (q @ projected + u[h] @ k + v[h] @ projected) / np.sqrt(C)

  return each(q, k, q_at, k_at, logit)


def deberta_bucket(distance, max_distance, buckets):
  """The row of the distance i - j: He et al. 2021, eq. 3; with buckets those of their DeBERTa-v2 code."""
  reach = buckets or max_distance
  if buckets and abs(distance) > buckets // 2:
    half = buckets // 2
    far = np.ceil(np.log(abs(distance) / half) / np.log((max_distance - 1) / half) * (half - 1) - 1e-9)
    distance = int(np.sign(distance) * (half + far))
  if distance <= -reach:
    return 0
  return 2 * reach - 1 if distance >= reach else distance + reach


def deberta(q, k, q_at, k_at, table, key, query, query_bias, max_distance, buckets):
  """He et al. 2021, eq. 4, content to content included, both δ counted from the query; q is not scaled here.

  table [N D]; key, query [D H C], None for an absent term.
  """
  terms = 1 + (key is not None) + (query is not None)

  def logit(h, q, k, i, j):
    row = table[deberta_bucket(i - j, max_distance, buckets)]
    total = q @ k
    if key is not None:
      total += q @ (row @ key[:, h])
    if query is not None:
      total += k @ (row @ query[:, h] + query_bias[h])
    return total / np.sqrt(terms * q.shape[-1])

  return each(q, k, q_at, k_at, logit)


def layer_norm(x, scale, bias, epsilon):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale + bias


def shaw(q, k, q_at, k_at, table):
  """Shaw et al. 2018, eq. 4; table [2m+1 C], or [2m+1 H C]."""
  reach = len(table) // 2

  def logit(h, q, k, i, j):
    row = table[max(-reach, min(reach, j - i)) + reach]
    return q @ (row[h] if row.ndim == 2 else row) / np.sqrt(len(q))

  return each(q, k, q_at, k_at, logit)


def dense_synthesizer(q, k, q_at, k_at, table, bias):
  """Tay et al. 2021, §3.1; table [N H C], bias [N H]."""
  return each(q, k, q_at, k_at, lambda h, q, k, i, j: np.maximum(q, 0) @ table[j, h] + bias[j, h])


def random_synthesizer(q, k, q_at, k_at, table):
  """Tay et al. 2021, §3.2; table [H N N]."""
  return each(q, k, q_at, k_at, lambda h, q, k, i, j: table[h, i, j])


def kerple(q, k, q_at, k_at, r1, r2, kind):
  """Chi et al. 2022."""

  def logit(h, q, k, i, j):
    d = abs(i - j)
    return -r1[h] * (np.log(1 + r2[h] * d) if kind == 'log' else d ** r2[h])

  return each(q, k, q_at, k_at, logit)


def fire(q, k, q_at, k_at, c, threshold, weight_1, bias_1, weight_2):
  """Li et al. 2024."""

  def logit(h, q, k, i, j):
    x = np.log(c * abs(i - j) + 1) / np.log(c * max(i, threshold) + 1)
    return sum(w2 * max(w1 * x + b1, 0) for w1, b1, w2 in zip(weight_1, bias_1, weight_2[:, h]))

  return each(q, k, q_at, k_at, logit)
