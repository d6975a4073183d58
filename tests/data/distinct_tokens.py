"""Tokens that are all different, so that each can be identified."""

from collections.abc import Sequence

import numpy as np

from tfm.data import tokens as token_arrays


def make_tokens(lengths: Sequence[int]) -> token_arrays.Tokens:
  """Documents of these lengths, whose tokens are 1, 2, 3, …"""
  offsets = np.concatenate([[0], np.cumsum(np.array(lengths, np.int64))])
  ids = np.arange(offsets[-1], dtype=np.uint32) + 1
  return token_arrays.Tokens('made up', ids, offsets, eos_id=10**6, bytes=int(offsets[-1]))
