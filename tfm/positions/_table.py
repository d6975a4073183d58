"""Positions with a table that has a row for each of a limited number of positions."""

from tfm.positions.protocol import Position
from tfm.spec import Size


class TablePosition(Position):
  """A scheme that knows the first `rows` positions.

  Attributes:
    rows: positions in the table; default: the length of the training sequences.

  Raises (from `validate`):
    ValueError: for a table shorter than the sequences.
  """

  rows: Size | None = None

  def validate(self):
    if self.max_positions < self.length:
      raise ValueError(
        f'rows={self.rows} is shorter than data.length={self.length}; '
        f'give the table at least {self.length} rows'
      )

  @property
  def max_positions(self):
    return self.length if self.rows is None else self.rows

  def fingerprint(self):
    return super().fingerprint() | dict(rows=self.max_positions)
