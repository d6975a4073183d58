"""No positions at all."""

from tfm.positions.protocol import Position


class NoPosition(Position):
  """NoPE: order comes from the causal mask alone (Kazemnejad et al. 2023)."""
