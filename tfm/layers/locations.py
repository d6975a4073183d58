"""Where tokens stand: their positions, and the documents that share a row."""

from typing import NamedTuple

from tfm.shapes import Array, Bool, Int


class Locations(NamedTuple):
  """Where the tokens of some queries or keys stand.

  Attributes:
    positions: of each token in its document.
    segments: the document of each token, numbered from 1 within its row; 0 is padding.
  """

  positions: Int[Array, 'B T']
  segments: Int[Array, 'B T']


def distances(q: Locations, k: Locations) -> Int[Array, 'B T S']:
  """Position of the key minus position of the query: below 0 for earlier keys."""
  return k.positions[:, None, :] - q.positions[:, :, None]


def same_document(q_segments: Int[Array, 'B T'], k_segments: Int[Array, 'B S']) -> Bool[Array, 'B T S']:
  """Whether both stand in one document, and the key is no padding."""
  return (q_segments[:, :, None] == k_segments[:, None, :]) & (k_segments != 0)[:, None, :]
