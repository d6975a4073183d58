"""No positions at all."""

from tfm.positions.protocol import Position


class NoPosition(Position):
  """NoPE: order is told by the causal mask alone (Kazemnejad et al. 2023)."""
