"""How a loss falls with compute: power laws above an irreducible loss, and what they say of two arms."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tfm.errors import importing_extra
from tfm.studies.statistics.summary import ALPHA


with importing_extra('ablation'):
  from scipy import interpolate, optimize, special, stats


# Residuals of log(loss) beyond this count linearly (Hoffmann et al. 2022, §3.3).
HUBER = 1e-3
DRAWS = 200
# Where the searches begin: parts of the lowest loss that are irreducible, and exponents.
FLOORS, EXPONENTS = (0.3, 0.7, 0.95), (0.1, 0.4, 1.0)
# The smallest irreducible part of the lowest loss; nearer to zero nothing depends on it.
SMALLEST = 1e-4

Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class PowerLaw:
  """loss = E + Σ_k A_k x_k^(-α_k).

  Attributes:
    floor: E, the irreducible loss; log_factors: log A_k; exponents: α_k.
  """

  floor: float
  log_factors: tuple[float, ...]
  exponents: tuple[float, ...]

  def __call__(self, x: np.ndarray) -> np.ndarray:
    """The losses [n] at x [n, k]; a term is absent where its x is NaN."""
    terms = np.exp(np.asarray(self.log_factors) - np.asarray(self.exponents) * np.log(x))
    return self.floor + np.nansum(terms, axis=1)


def fit_power_law(x: np.ndarray, losses: np.ndarray, start: PowerLaw | None = None) -> PowerLaw:
  """The PowerLaw that minimizes Σ Huber(log loss - log prediction): the parametric fit of Hoffmann et al.
  2022, §3.3, with the sum instead of the mean (Besiroglu et al. 2024, on why the mean stops too early).

  Args:
    x: [n, k] positive, such as parameters and tokens; a term is absent where its x is NaN, so that arms
      with a term each are fitted jointly, with one irreducible loss.
    losses: [n] positive.
    start: where to begin; None: at several places.

  Raises:
    ValueError: with fewer points than unknowns.
  """
  n, k = x.shape
  if n < 1 + 2 * k:
    raise ValueError(f'{n} points do not determine {1 + 2 * k} unknowns; use more scales')
  log_x, log_loss = np.log(x), np.log(losses)
  center = np.nanmean(log_x, axis=0)
  z, is_absent = np.nan_to_num(log_x - center), np.isnan(log_x)
  lowest = log_loss.min()

  def logits(theta):
    return np.column_stack(
      [np.full(n, theta[0]), np.where(is_absent, -np.inf, theta[1 : 1 + k] - theta[1 + k :] * z)]
    )

  def residuals(theta):
    return special.logsumexp(logits(theta), axis=1) - log_loss

  def jacobian(theta):
    weights = special.softmax(logits(theta), axis=1)
    return np.column_stack([weights, -weights[:, 1:] * z])

  def search(theta):
    return optimize.least_squares(
      residuals,
      np.clip(theta, *bounds),
      jacobian,
      bounds,
      x_scale='jac',
      loss='huber',
      f_scale=HUBER,
      max_nfev=300,
    )

  bounds = (
    np.array([lowest + math.log(SMALLEST), *[-50.0] * k, *[0.0] * k]),
    np.array([lowest, *[50.0] * k, *[10.0] * k]),
  )
  if start is None:
    height, shares = losses.mean(), np.maximum(1, (~is_absent).sum(1)).mean()
    starts = [
      [lowest + math.log(part), *[math.log((height - part * losses.min()) / shares)] * k, *[exponent] * k]
      for part, exponent in itertools.product(FLOORS, EXPONENTS)
    ]
  else:
    factors = np.asarray(start.log_factors) - np.asarray(start.exponents) * center
    starts = [[math.log(start.floor), *factors, *start.exponents]]
  best = min((search(np.array(theta)) for theta in starts), key=lambda found: found.cost).x
  exponents = best[1 + k :]
  return PowerLaw(
    float(math.exp(best[0])),
    tuple((best[1 : 1 + k] + exponents * center).tolist()),
    tuple(exponents.tolist()),
  )


def draw_power_laws(x: np.ndarray, losses: np.ndarray, fit: PowerLaw, draws: int = DRAWS) -> list[PowerLaw]:
  """Fits of losses that are drawn anew: the fitted ones, times residuals drawn from all (a bootstrap).

  The residuals are larger by √(n / (n - unknowns)) than those of the fit, which are too small.
  """
  n, k = x.shape
  predicted = fit(x)
  residuals = np.log(losses / predicted)
  residuals = (residuals - residuals.mean()) * math.sqrt(n / max(1, n - 1 - 2 * k))
  drawn = np.random.default_rng(0).choice(residuals, (draws, n))
  return [fit_power_law(x, predicted * np.exp(row), fit) for row in drawn]


@dataclasses.dataclass(frozen=True)
class Multiplier:
  """How many times the compute of an arm its base needs for the same loss: above 1, the arm saves compute.

  Attributes:
    compute: of the arm; value: the multiplier there; low, high: its interval.
  """

  compute: float
  value: float
  low: float
  high: float

  @property
  def word(self) -> str:
    """'better', 'worse' or 'undecided'."""
    return 'better' if self.low > 1 else 'worse' if self.high < 1 else 'undecided'


@dataclasses.dataclass(frozen=True)
class ScalingCurve:
  """The curve of one arm: loss = E + A C^-α.

  Attributes:
    compute: C, the smallest and the largest.
    factor: A, in units of loss at the smallest compute, so that the curve begins at E + factor.
    multipliers: at the smallest and the largest compute that both it and its base have; () for the base.
    crossing: the compute at which it crosses its base within these, if both multipliers decide that it does.
  """

  compute: Interval
  floor: float
  factor: float
  exponent: float
  exponent_interval: Interval
  multipliers: tuple[Multiplier, ...] = ()
  crossing: float | None = None

  def __call__(self, compute: np.ndarray) -> np.ndarray:
    """The losses at these amounts of compute."""
    return self.floor + self.factor * (np.asarray(compute) / self.compute[0]) ** -self.exponent

  @property
  def relation(self) -> str:
    """How the curve lies to its base's: 'better' or 'worse' at both ends, 'crosses', or 'undecided'."""
    words = {multiplier.word for multiplier in self.multipliers}
    return 'undecided' if 'undecided' in words else words.pop() if len(words) == 1 else 'crosses'


def compare_curves(
  points: Mapping[str, Sequence[tuple[float, float]]], base: str, draws: int = DRAWS
) -> dict[str, ScalingCurve]:
  """The curves of arms, fitted jointly with one irreducible loss, and their multipliers of compute.

  With m the multiplier of an arm at compute C: A_base (m C)^-α_base = A C^-α, so
  m = (A_base / A)^(1/α_base) C^(α / α_base - 1). Intervals, of α and log m, are Student's, with the deviation
  over `draw_power_laws`; those of multipliers hold all together (Bonferroni).

  Args:
    points: arm → (compute, loss) at each scale, the mean over seeds: where the scales do not lie on a power
      law, the residuals of runs would be too alike to be drawn apart.
    base: the arm that the others are compared with.

  Raises:
    ValueError: with fewer points than unknowns.
  """
  arms = [*points]
  x = np.full((sum(map(len, points.values())), len(arms)), np.nan)
  x[range(len(x)), [arms.index(arm) for arm in arms for _ in points[arm]]] = [
    compute for of_arm in points.values() for compute, _ in of_arm
  ]
  losses = np.array([loss for of_arm in points.values() for _, loss in of_arm])
  fit = fit_power_law(x, losses)
  drawn = draw_power_laws(x, losses, fit, draws)
  df, level = max(1, len(x) - 1 - 2 * len(arms)), ALPHA / max(1, 2 * (len(arms) - 1))
  ends = {arm: (min(of_arm)[0], max(of_arm)[0]) for arm, of_arm in points.items()}
  b, curves = arms.index(base), {}
  for i, arm in enumerate(arms):
    low, high = ends[arm]
    curves[arm] = ScalingCurve(
      (low, high),
      fit.floor,
      math.exp(fit.log_factors[i] - fit.exponents[i] * math.log(low)),
      fit.exponents[i],
      student_interval(fit.exponents[i], [law.exponents[i] for law in drawn], df, ALPHA),
    )
    if arm == base:
      continue
    multipliers = []
    for compute in (max(low, ends[base][0]), min(high, ends[base][1])):
      log_m = log_multiplier(fit, i, b, compute)
      interval = student_interval(log_m, [log_multiplier(law, i, b, compute) for law in drawn], df, level)
      multipliers.append(Multiplier(compute, *map(safe_exp, (log_m, *interval))))
    curve = dataclasses.replace(curves[arm], multipliers=tuple(multipliers))
    if curve.relation == 'crosses':
      log_crossing = (fit.log_factors[i] - fit.log_factors[b]) / (fit.exponents[i] - fit.exponents[b])
      curve = dataclasses.replace(curve, crossing=math.exp(log_crossing))
    curves[arm] = curve
  return curves


def read_multipliers(
  points: Mapping[str, Sequence[tuple[float, Sequence[float]]]], base: str
) -> dict[str, list[Multiplier | None]]:
  """The multipliers of compute at the points of arms, read between the points of the base, without a fit.

  The base's mean loss over log C is interpolated by cubic pieces that rise and fall only where its points do
  (Fritsch & Butland 1984; scipy's PCHIP). Where it first falls to the mean loss of an arm at compute C is
  C_base, and m = C_base / C. Intervals are of seeds: Student's for log m, by the slope there, with the
  deviation of a run pooled over all points, and all hold together (Bonferroni). They do not hold how the
  base's curve bends between its points.

  Args:
    points: arm → (compute, losses of seeds) at each scale, by compute; of the base at least two.

  Returns:
    arm → a multiplier for each of its points, None where the base does not fall to the loss.
  """
  losses = [np.asarray(of_point) for of_arm in points.values() for _, of_point in of_arm]
  df = sum(map(len, losses)) - len(losses)
  variance = sum(len(x) * np.var(x) for x in losses) / df if df else math.inf
  z = np.log([compute for compute, _ in points[base]])
  curve = interpolate.PchipInterpolator(z, [np.mean(of_point) for _, of_point in points[base]])
  places = {
    arm: [_find_fall(curve, float(np.mean(of_point))) for _, of_point in of_arm]
    for arm, of_arm in points.items()
    if arm != base
  }
  count = max(1, sum(place is not None for of_arm in places.values() for place in of_arm))
  t = float(stats.t.ppf(1 - ALPHA / count / 2, max(1, df)))

  def multiplier(place, compute, of_point):
    if place is None:
      return None
    # The base's loss there varies about as the mean of its neighbours', weighted by distance.
    i = min(max(np.searchsorted(z, place) - 1, 0), len(z) - 2)
    part = (place - z[i]) / (z[i + 1] - z[i])
    counts = [len(of_base) for _, of_base in points[base][i : i + 2]]
    shares = 1 / len(of_point) + (1 - part) ** 2 / counts[0] + part**2 / counts[1]
    half = t * math.sqrt(variance * shares) / -float(curve(place, 1))
    log_m = place - math.log(compute)
    return Multiplier(compute, *map(safe_exp, (log_m, log_m - half, log_m + half)))

  return {
    arm: [multiplier(place, *point) for place, point in zip(of_arm, points[arm])]
    for arm, of_arm in places.items()
  }


def _find_fall(curve: interpolate.PchipInterpolator, loss: float) -> float | None:
  """Where a curve first falls to a loss between its points; None if nowhere."""
  roots = curve.solve(loss, extrapolate=False)
  return next((float(root) for root in np.sort(roots) if curve(root, 1) < 0), None)


def log_multiplier(law: PowerLaw, arm: int, base: int, compute: float) -> float:
  """log m of one term against another (`compare_curves`); infinite where the base's curve is flat."""
  exponent = law.exponents[base]
  if not exponent:
    return math.inf
  log_m = (law.log_factors[base] - law.log_factors[arm]) / exponent
  return log_m + (law.exponents[arm] / exponent - 1) * math.log(compute)


def student_interval(value: float, drawn: Sequence[float], df: int, level: float) -> Interval:
  """value ± t(df) · the deviation of what was drawn; without bounds if that is not finite."""
  with np.errstate(invalid='ignore'):
    half = float(stats.t.ppf(1 - level / 2, df) * np.std(drawn, ddof=1))
  return (value - half, value + half) if math.isfinite(half) else (-math.inf, math.inf)


def safe_exp(x: float) -> float:
  """exp(x), infinite where it exceeds the range of floats."""
  return math.exp(x) if x < 700 else math.inf
