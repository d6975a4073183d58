"""How much a difference depends on the text it was evaluated on."""

import math
from collections.abc import Mapping

import numpy as np


Parts = Mapping[int, Mapping[float, float]]


def text_error(arm: Parts, base: Parts, weights: Mapping[float, float]) -> float | None:
  """Standard error of a mean difference over the parts of a text; None without two common parts and a seed.

  With d_p the difference at part p, a mean over the common seeds, and its weight w_p:
  √(m / (m - 1) · Σ w_p² (d_p - d)²) / Σ w_p, d = Σ w_p d_p / Σ w_p: the variance of a weighted mean over m
  parts drawn at random. Added to the variance over seeds it is that of the multi-bootstrap, which draws seeds
  and texts (Sellam et al. 2022, §3.1); the bootstrap of few seeds alone is too narrow.

  Args:
    arm, base: seed → part → value.
    weights: part → its number of tokens.
  """
  seeds = sorted(set(arm) & set(base))
  parts = sorted(set.intersection(set(weights), *(set(of[seed]) for of in (arm, base) for seed in seeds)))
  m = len(parts)
  if not seeds or m < 2:
    return None
  d = np.mean([[arm[seed][part] - base[seed][part] for part in parts] for seed in seeds], axis=0)
  w = np.array([weights[part] for part in parts], float)
  mean = (w * d).sum() / w.sum()
  return float(math.sqrt(m / (m - 1) * (w**2 * (d - mean) ** 2).sum()) / w.sum())
