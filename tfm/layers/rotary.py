"""Rotary positions: frequencies, their scalings for longer texts, and the rotation of channel pairs."""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from tfm.shapes import Array, Float, Int


# Radians per token of each pair of channels, on the host in float64, and a factor on the rotated channels. A
# scaling that follows the text while it grows has, instead of the numbers, a function of the positions read.
Waves = tuple[np.ndarray | Callable[[Int[Array, 'B T']], Float[Array, 'N']], float]


def frequencies(theta: float, channels: int) -> np.ndarray:
  """theta^(-2i/channels) for the pairs i < channels/2: radians per token (Vaswani et al. 2017, §3.5).

  In float64 on the host for a number theta, in float32 for an array.
  """
  return theta ** (-2 * np.arange(channels // 2, dtype=np.float64) / channels)


def angles(
  positions: Int[Array, 'B T'], frequencies: np.ndarray | Callable[[Int[Array, 'B T']], Float[Array, 'N']]
) -> Float[Array, 'B T N']:
  """position · frequency in float32, modulo whole turns; accurate to about 1e-6 radians at every position.

  The product in float32 itself is 0.004 radians off at position 100 000. So a frequency is split into
  a multiple of 2⁻³² turns, whose product with a position overflows by whole turns only, and a rest.
  """
  if callable(frequencies):
    return positions[:, :, None].astype(jnp.float32) * frequencies(positions)[None, None, :]
  turns = frequencies / (2 * math.pi)
  whole = np.round(turns * 2.0**32)
  rest = (turns - whole * 2.0**-32).astype(np.float32)
  at = positions[:, :, None].astype(jnp.int32)
  coarse = (at * whole.astype(np.int64).astype(np.int32)[None, None, :]).astype(jnp.float32)
  return 2 * math.pi * (coarse * 2.0**-32 + at.astype(jnp.float32) * rest[None, None, :])


def rotate_pairs(
  x: Float[Array, 'B T H C'],
  angles: Float[Array, 'B T N'],
  interleaved: bool = False,
  factor: float | Float[Array, 'B T N'] = 1.0,
) -> Float[Array, 'B T H C']:
  """Rotates the pairs of the first 2N channels of each head by N angles, and multiplies them by `factor`.

  The pairs are (i, i + N), or `interleaved` (2i, 2i + 1). Computed in float32; the result has the type of x.
  """
  N = angles.shape[-1]
  channels = 2 * N
  cos, sin = ((factor * f(angles))[:, :, None, :] for f in (jnp.cos, jnp.sin))
  shape, axis = ((N, 2), -1) if interleaved else ((2, N), -2)
  pairs = x[..., :channels].astype(jnp.float32).reshape(*x.shape[:-1], *shape)
  first, second = jnp.unstack(pairs, axis=axis)
  rotated = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis)
  rotated = rotated.reshape(*x.shape[:-1], channels).astype(x.dtype)
  return rotated if channels == x.shape[-1] else jnp.concatenate([rotated, x[..., channels:]], -1)


# Scalings: what `rope(scaling=…)` may name. `theta` and `channels` (those rotated) come from the position,
# `longest` is the longest training sequence of the run; the other arguments come from the spec.


def unscaled(theta: float, channels: int) -> Waves:
  """The frequencies as they are."""
  return frequencies(theta, channels), 1.0


def linear(theta: float, channels: int, factor: float) -> Waves:
  """Position interpolation: position / factor for position (Chen et al. 2023).

  Args:
    factor: how many times longer than in training the texts are.
  """
  _at_least(1, factor=factor)
  return frequencies(theta, channels) / factor, 1.0


def proportional(theta: float, channels: int, share: float, factor: float = 1.0) -> Waves:
  """p-RoPE: the fastest pairs rotate, at their usual frequencies, and the others not at all (Barbero et al.
  2024, Round and Round We Go!).

  Args:
    share: of the pairs that rotates, rounded down to whole pairs; 0 is no position, 1 is all of them.
    factor: how many times longer than in training the texts are, as in `linear`.
  """
  _at_least(1, factor=factor)
  if not 0 <= share <= 1:
    raise ValueError(f'share={share} must lie between 0 and 1')
  pairs = channels // 2
  return frequencies(theta, channels) * (np.arange(pairs) < int(share * pairs)) / factor, 1.0


def hope(theta: float, channels: int, length: int) -> Waves:
  """HoPE: the pairs that turn whole within the texts of training rotate, at their usual frequencies, and the
  slower ones carry no position (Chen et al. 2024, HoPE): 2π / θᵢ ≤ length.

  Args:
    length: of the texts of training, in tokens.
  """
  _at_least(1, length=length)
  waves = frequencies(theta, channels)
  return waves * (2 * np.pi <= length * waves), 1.0


def dynamic(  # more than six parameters: three come from the model, four from the spec
  theta: float,
  channels: int,
  longest: int,
  factor: float,
  original: int,
  length: int | None = None,
  stepwise: bool = False,
) -> Waves:
  """Dynamic NTK: theta · (factor · length / original - factor + 1)^(channels / (channels - 2)), where
  `length` exceeds `original` (bloc97 and emozilla 2023; Peng et al. 2023, §3.3, where factor is 1).

  In published implementations `length` is the number of tokens read so far, so that cached keys were rotated
  with another theta than later queries, and one document of a batch changes the others.
  Here a model has one length, unless `stepwise`; a sequence of exactly that length is rotated as published.

  Args:
    original: the longest sequence, in tokens, for which theta is right.
    length: the longest sequence to be read; default: the longest of the run's training.
    stepwise: whether `length` grows with the positions that are read at once, as published code decodes.
  """
  _at_least(1, factor=factor, original=original)
  length = _length(length, longest, original)
  if channels < 4:
    raise ValueError(
      f'the exponent is channels / (channels - 2), and only {channels} channels are rotated; rotate 4 or more'
    )

  def scaled(length):
    scale = factor * length / original - factor + 1
    return frequencies(theta * scale ** (channels / (channels - 2)), channels)

  return (lambda positions: scaled(_grown(length, positions))) if stepwise else scaled(length), 1.0


def yarn(
  theta: float,
  channels: int,
  factor: float,
  original: int,
  beta_fast: float = 32.0,
  beta_slow: float = 1.0,
  attention_factor: float | None = None,
  mscale: float = 1.0,
  mscale_all_dim: float = 0.0,
  truncate: bool = True,
) -> Waves:
  """Slow frequencies divided by `factor`, fast ones unchanged, rotated channels scaled (Peng et al. 2023,
  §3.4).

  Pairs that turn `beta_fast` times or more in `original` tokens are unchanged; those that turn `beta_slow`
  times or less are divided. Between them the share is linear in the index of the pair, as in the authors'
  code; their γ in §3.2 is linear in the number of turns.

  Args:
    factor: how many times longer than `original`, the length of training in tokens, the texts are.
    attention_factor: on queries and keys each, in the channels that are rotated; m(mscale) /
      m(mscale_all_dim) with m(x) = 0.1 x ln(factor) + 1 by default. The paper's is m(1); the two
      scales are DeepSeek-V2's (2024), whose logits are multiplied by m(mscale_all_dim)² besides.
    truncate: whether both ends of the ramp lie at whole indices (OpenAI 2025, gpt-oss: not).
  """
  _at_least(1, factor=factor, original=original)
  if not beta_fast > beta_slow > 0:
    raise ValueError(f'beta_fast={beta_fast} must be above beta_slow={beta_slow}, and that above 0')
  if theta <= 1:
    raise ValueError(f'theta={theta} must be above 1, or later pairs turn no slower')
  # The real-valued index of the pair that turns so many times.
  low, high = (
    channels * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))
    for turns in (beta_fast, beta_slow)
  )
  if truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, channels - 1)
  if low > high:
    raise ValueError(
      f'original={original} is so {"short" if high < 0 else "long"} that no pair of '
      f'theta={theta} turns from beta_slow={beta_slow} to beta_fast={beta_fast} times in it'
    )
  high = high + 0.001 if low == high else high  # a step; so small as published
  unscaled_share = 1 - np.clip((np.arange(channels // 2) - low) / (high - low), 0, 1)
  if attention_factor is None:
    over, under = (0.1 * scale * math.log(factor) + 1 for scale in (mscale, mscale_all_dim))
    attention_factor = over / under
  return _blend(theta, channels, factor, unscaled_share), attention_factor


def llama3(
  theta: float,
  channels: int,
  factor: float = 8.0,
  low_freq_factor: float = 1.0,
  high_freq_factor: float = 4.0,
  original: int = 8192,
) -> Waves:
  """Slow frequencies divided by `factor`, fast ones unchanged (Llama Team 2024, Llama 3.1, in its code).

  Pairs that turn `high_freq_factor` times or more in `original` tokens are unchanged; those that turn
  `low_freq_factor` times or less are divided; between them the share is linear in the number of turns.
  """
  _at_least(1, factor=factor, original=original)
  if not high_freq_factor > low_freq_factor:
    raise ValueError(f'high_freq_factor={high_freq_factor} must be above low_freq_factor={low_freq_factor}')
  turns = original * frequencies(theta, channels) / (2 * math.pi)
  unscaled_share = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
  return _blend(theta, channels, factor, unscaled_share), 1.0


def longrope(  # more than six parameters: three come from the model, the others from the spec
  theta: float,
  channels: int,
  longest: int,
  short_factor: tuple[float, ...],
  long_factor: tuple[float, ...],
  original: int,
  factor: float | None = None,
  attention_factor: float | None = None,
  length: int | None = None,
  stepwise: bool = False,
) -> Waves:
  """Each frequency divided by its own factor, rotated channels scaled (Ding et al. 2024; Phi-3).

  Published implementations change from `short_factor` to `long_factor` after `original` tokens, while the
  cache holds keys rotated with the former. Here a model has one length: it uses `long_factor` if that exceeds
  `original`, from the first token on, as published for a sequence of that length.

  Args:
    short_factor, long_factor: one number for each pair.
    original: the length of the first training, in tokens.
    factor: how many times longer the texts are; default: length / original.
    attention_factor: on queries and keys each, in the channels that are rotated;
      default: √(1 + ln(factor) / ln(original)).
    length: the longest sequence to be read; default: the longest of the run's training.
    stepwise: as in `dynamic`.
  """
  _at_least(2, original=original)
  length = _length(length, longest, original)
  for name, factors in (('short_factor', short_factor), ('long_factor', long_factor)):
    if not isinstance(factors, (tuple, list)) or len(factors) != channels // 2 or not min(factors) > 0:
      raise ValueError(f'{name}={factors!r} must hold {channels // 2} numbers above 0, one for each pair')
  factor = length / original if factor is None else factor
  _at_least(1, factor=factor)
  if attention_factor is None:
    attention_factor = math.sqrt(1 + math.log(factor) / math.log(original))
  short, long = (frequencies(theta, channels) / np.asarray(x) for x in (short_factor, long_factor))
  if not stepwise:
    return long if length > original else short, attention_factor
  return (
    lambda positions: jnp.where(_grown(length, positions) > original, long, short).astype(jnp.float32)
  ), attention_factor


SCALINGS = {
  'none': unscaled,
  'linear': linear,
  'proportional': proportional,
  'hope': hope,
  'dynamic': dynamic,
  'yarn': yarn,
  'llama3': llama3,
  'longrope': longrope,
}


def _blend(theta, channels, factor, unscaled_share):
  """Interpolates between unchanged frequencies (share 1) and frequencies divided by `factor` (share 0)."""
  return frequencies(theta, channels) * (unscaled_share + (1 - unscaled_share) / factor)


def _grown(length: int, positions: Int[Array, 'B T']) -> Float[Array, '']:
  """The length of the longest text of a batch, once these positions are read."""
  return jnp.maximum(length, positions.max() + 1).astype(jnp.float32)


def _length(length, longest, original):
  """The length of a model's sequences, and no less than the original."""
  length = longest if length is None else length
  _at_least(1, length=length)
  return max(length, original)


def _at_least(least, **arguments):
  for name, value in arguments.items():
    if not value >= least:
      raise ValueError(f'{name}={value} must be at least {least}')
