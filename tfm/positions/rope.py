"""Rotary positions."""

import inspect
from typing import Annotated, Any

from annotated_types import Interval

from tfm.layers.rotary import SCALINGS, Waves, angles, rotate_pairs
from tfm.positions.protocol import Position
from tfm.spec import PositiveFloat, build_from_table, parse


class Rope(Position):
  """Rotates channel pairs of queries and keys by angles proportional to the position.

    (x₁, x₂) → (x₁ cos mθᵢ - x₂ sin mθᵢ, x₂ cos mθᵢ + x₁ sin mθᵢ),  θᵢ = theta^(-2i/R)

  so that q·k depends on positions only through their difference (Su et al. 2021, RoFormer, eq. 34).
  The first R = fraction · C channels of a head are rotated. Channel i is paired with i + R/2, the
  published layout of GPT-NeoX and of LLaMA checkpoints in transformers, or with its neighbour.
  Angles are accurate in float32 at every position, whatever the compute type.

  Attributes:
    theta: base of the wavelengths; 10 000 in the paper.
    fraction: of each head's channels that is rotated, the first ones (Black et al. 2022,
      GPT-NeoX-20B, §2.1.1: a quarter); the others carry no position.
    interleaved: whether the pairs are (2i, 2i + 1), as in the paper, GPT-J and Meta's own LLaMA.
    scaling: how frequencies are scaled for longer texts, a spec in quotes such as
      "yarn(factor=4, original=2048)": one of `tfm.layers.rotary.SCALINGS`. Where a scaling depends on
      the length of the text (dynamic, longrope), it is one length for the whole model, so that cached
      keys, packed documents and longer neighbours change no rotation; published code differs there, and
      their argument `stepwise` decodes as it does.

  Raises (from `validate`):
    ValueError: for an odd head width, a fraction that is no number of pairs, theta not above 0, or a
      scaling that is unknown or invalid.
  """

  theta: PositiveFloat = 10_000.0
  fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0
  interleaved: bool = False
  scaling: str = 'none'

  examples = (
    'rope',
    'rope(fraction=0.5, interleaved=True, scaling="yarn(factor=4, original=8)")',
    'rope(scaling="dynamic(factor=2, original=8)")',
    'rope(scaling="proportional(0.5)")',
    'rope(scaling="hope(12)")',
  )

  def validate(self):
    C, exact = self.head_width, self.fraction * self.head_width
    if C < 2 or C % 2 and self.fraction == 1:
      raise ValueError(
        f'rotates pairs of channels, and the head width is {C} (model.width / model.heads); '
        'choose an even one'
      )
    if abs(exact - self.channels) > 1e-3 or self.channels % 2 or self.channels < 2:
      even = min(max(2, 2 * round(exact / 2)), C // 2 * 2)
      raise ValueError(
        f'fraction={self.fraction} of the head width {C} is {exact:.6g} channels, which is '
        f'no number of pairs; use fraction={even / C:.6g}, {even} channels'
      )
    self.waves()

  @property
  def channels(self) -> int:
    """R, how many channels are rotated."""
    return round(self.fraction * self.head_width)

  def waves(self) -> Waves:
    """The frequency of each pair, and the factor on the rotated channels."""
    return build_from_table(
      self.scaling, SCALINGS, theta=self.theta, channels=self.channels, longest=self.length
    )

  def fingerprint(self):
    frequencies, factor = self.waves()
    numbers = self.scaling if callable(frequencies) else frequencies.tolist()
    return super().fingerprint() | dict(
      theta=None, fraction=None, scaling=(*numbers, factor, self.length_scaling())
    )

  def length_scaling(self) -> dict[str, Any]:
    """The arguments of a scaling that depends on the length of the text; empty for other scalings."""
    call = parse(self.scaling)
    parameters = [*inspect.signature(SCALINGS[call.name]).parameters]
    own = [name for name in parameters if name not in ('theta', 'channels', 'longest')]
    return dict(zip(own, call.args)) | dict(call.kwargs) if 'longest' in parameters else {}

  def rotate(self, q, k, q_positions, k_positions):
    frequencies, factor = self.waves()
    return tuple(
      rotate_pairs(x, angles(positions, frequencies), self.interleaved, factor)
      for x, positions in ((q, q_positions), (k, k_positions))
    )
