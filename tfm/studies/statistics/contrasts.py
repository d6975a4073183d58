"""Differences of arms from their bases, with one noise for all: Dunnett's test, with seeds as blocks."""

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from tfm.errors import importing_extra
from tfm.shapes import Float
from tfm.studies.statistics.summary import Spread


with importing_extra('ablation'):
  from scipy import optimize, stats
  from statsmodels.regression.linear_model import OLS


Values = Mapping[int, float]
# Fixed, so that a report of the same results has the same numbers: the integrals are quasi-Monte-Carlo.
INTEGRATION_SEED = 0


@dataclasses.dataclass(frozen=True)
class Contrasts:
  """m differences, estimated together.

  Attributes:
    differences, errors: [m], the estimates and their standard errors.
    correlation: [m, m], of the estimates.
    spread: of a single run about what its arm and its seed explain: the noise floor.
    blocked: whether the effects of seeds that arms share were removed.
  """

  differences: Float[np.ndarray, 'm']
  errors: Float[np.ndarray, 'm']
  correlation: Float[np.ndarray, 'm m']
  spread: Spread
  blocked: bool

  def correct_p(self) -> Float[np.ndarray, 'm']:
    """For each difference, the probability that any of m differences of equal arms is as many errors from 0:
    p = P(max |T| ≥ |t|), T multivariate t (Dunnett 1955; Hothorn, Bretz & Westfall 2008, eq. 2).
    """
    t = np.abs(self.differences / self.errors)
    single = 2 * stats.t.sf(t, self.spread.df)
    joint = np.array([1 - central_probability(x, self.correlation, self.spread.df) for x in t])
    # The integral is exact to about 1e-5; these bounds always hold, and nearly meet where p is small.
    return np.clip(joint, single, np.minimum(1, len(t) * single))

  def critical_value(self, level: float) -> float:
    """The c for which all m intervals difference ± c · error hold together with this probability."""
    return critical_value(tuple(map(tuple, self.correlation.round(6))), self.spread.df, level)


def fit_contrasts(values: Mapping[str, Values], pairs: Sequence[tuple[str, str]]) -> Contrasts | None:
  """The differences arm - base of some pairs, from the linear model value = arm (+ seed) + noise.

  Seeds are blocks where the arms share them, so that what a seed does to all arms is no noise; arms may lack
  seeds. Without enough common seeds the model has no blocks. None if the noise cannot be estimated at all.

  Args:
    values: arm → seed → value; all arms enter the estimate of the noise.
    pairs: (arm, base), all in `values`.
  """
  cells = [(arm, seed, value) for arm, of_arm in values.items() for seed, value in of_arm.items()]
  arms, seeds = list(values), sorted({seed for _, seed, _ in cells})
  of_arm = np.array([[arm == other for other in arms] for arm, _, _ in cells], float)
  of_seed = np.array([[seed == other for other in seeds[1:]] for _, seed, _ in cells], float)
  select = np.array([[(a == arm) - (a == base) for a in arms] for arm, base in pairs], float)
  select = select.reshape(len(pairs), len(arms))
  for blocks in (of_seed.reshape(len(cells), -1), np.zeros((len(cells), 0))):
    design = np.hstack([of_arm, blocks])
    wanted = np.hstack([select, np.zeros((len(pairs), blocks.shape[1]))])
    df = len(cells) - np.linalg.matrix_rank(design)
    is_estimable = np.allclose(wanted @ np.linalg.pinv(design) @ design, wanted)
    if df > 0 and is_estimable:
      with warnings.catch_warnings():
        # Other parameters than the wanted differences may be free.
        warnings.filterwarnings('ignore', 'The design matrix is rank-deficient')
        model = OLS([value for *_, value in cells], design).fit()
      covariance = wanted @ model.normalized_cov_params @ wanted.T
      scale = np.sqrt(np.diag(covariance))
      deviation = float(np.sqrt(model.mse_resid))
      return Contrasts(
        wanted @ model.params,
        deviation * scale,
        covariance / np.outer(scale, scale),
        Spread(deviation, int(df)),
        bool(blocks.shape[1]),
      )
  return None


def central_probability(limit: float, correlation: np.ndarray, df: int) -> float:
  """P(all |T_i| ≤ limit) of the multivariate t distribution."""
  limits = np.full(len(correlation), limit)
  return float(
    stats.multivariate_t.cdf(
      limits,
      None,
      correlation,
      df,
      allow_singular=True,
      lower_limit=-limits,
      random_state=np.random.default_rng(INTEGRATION_SEED),
    )
  )


@functools.lru_cache(maxsize=4096)
def critical_value(correlation: tuple[tuple[float, ...], ...], df: int, level: float) -> float:
  """The c with P(all |T_i| ≤ c) = level, between Student's t and Bonferroni's bound."""
  m = len(correlation)
  least, most = (float(stats.t.isf((1 - level) / 2 / count, df)) for count in (1, m))
  if m == 1:
    return least
  matrix = np.array(correlation)

  def excess(c):
    return central_probability(c, matrix, df) - level

  # At the bounds the integral's error may have either sign.
  if excess(least) >= 0 or excess(most) <= 0:
    return most
  return optimize.brentq(excess, least, most, xtol=1e-4)


def exchangeable(m: int) -> tuple[tuple[float, ...], ...]:
  """The correlation of m differences from one base with as many seeds in every arm: ½."""
  return tuple(tuple(1.0 if i == j else 0.5 for j in range(m)) for i in range(m))
