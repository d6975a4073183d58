"""Characters as tokens."""

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from tfm.data.tokenizers import protocol


@dataclasses.dataclass(frozen=True)
class Char(protocol.Tokenizer):
  """The characters of the training split in the order of their code points, then the end of a text.

  A character that the training split lacks is written as its UTF-8 bytes, whose 256 tokens stand
  last: nothing becomes "unknown".
  """

  alphabet: str = ''

  @property
  def is_trained(self) -> bool:
    return bool(self.alphabet)

  def train(self, texts: Iterable[str]) -> 'Char':
    found = set()
    for text in texts:
      found.update(text)
    return Char(''.join(sorted(found)))

  @functools.cached_property
  def pieces(self) -> tuple[bytes, ...]:
    return (*(c.encode() for c in self.alphabet), b'', *(bytes([i]) for i in range(256)))

  @property
  def eos_id(self) -> int:
    return len(self.alphabet)

  def encode(self, text: str) -> np.ndarray:
    if not self.is_trained:
      raise protocol.no_model(self)
    codes = _codes(text)
    ids = np.searchsorted(self._codes, codes).astype(np.int32)
    known = self._codes[np.minimum(ids, len(self._codes) - 1)] == codes
    if known.all():
      return ids
    out = []
    for start, stop in _runs(known):
      if known[start]:
        out.append(ids[start:stop])
      else:
        data = np.frombuffer(text[start:stop].encode(), np.uint8)
        out.append(data.astype(np.int32) + self.eos_id + 1)
    return np.concatenate(out)

  @functools.cached_property
  def _codes(self) -> np.ndarray:
    return _codes(self.alphabet)


def _codes(text: str) -> np.ndarray:
  return np.frombuffer(text.encode('utf-32-le'), np.uint32)


def _runs(flags: np.ndarray) -> list[tuple[int, int]]:
  """The (start, stop) of each run of equal values."""
  bounds = [0, *(np.flatnonzero(np.diff(flags)) + 1).tolist(), len(flags)]
  return list(zip(bounds, bounds[1:]))
