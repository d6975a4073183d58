"""Documents that stand in one row."""

from tfm.shapes import Array, Bool, Int


def same_document(q_segments: Int[Array, 'B T'], k_segments: Int[Array, 'B S']) -> Bool[Array, 'B T S']:
  """Whether both stand in one document, and the key is no padding."""
  return (q_segments[:, :, None] == k_segments[:, None, :]) & (k_segments != 0)[:, None, :]
