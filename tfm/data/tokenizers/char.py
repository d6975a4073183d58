"""Characters as tokens."""

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from tfm.data.tokenizers import protocol


@dataclasses.dataclass(frozen=True)
class Char(protocol.Tokenizer):
  """The characters of the training split in the order of their code points, then the end of a text.

  Attributes:
    byte_fallback: whether a character that is not in the training split is encoded as its UTF-8 bytes, whose
      256 tokens are the last. False: the vocabulary is the alphabet and the end of a text, and another
      character is an error. There is no unknown token.

  Raises:
    ValueError: from `encode`, for a character that has no token, naming it.
  """

  byte_fallback: bool = True
  alphabet: str = ''

  @property
  def is_trained(self) -> bool:
    return bool(self.alphabet)

  def train(self, texts: Iterable[str]) -> 'Char':
    characters = set()
    for text in texts:
      characters.update(text)
    return dataclasses.replace(self, alphabet=''.join(sorted(characters)))

  @functools.cached_property
  def pieces(self) -> tuple[bytes, ...]:
    fallback = (bytes([i]) for i in range(256)) if self.byte_fallback else ()
    return (*(c.encode() for c in self.alphabet), b'', *fallback)

  @property
  def eos_id(self) -> int:
    return len(self.alphabet)

  def encode(self, text: str) -> np.ndarray:
    if not self.is_trained:
      raise protocol.untrained_error(self)
    codes = _code_points(text)
    ids = np.searchsorted(self._alphabet_codes, codes).astype(np.int32)
    known = self._alphabet_codes[np.minimum(ids, len(self._alphabet_codes) - 1)] == codes
    if known.all():
      return ids
    if not self.byte_fallback:
      unknown = chr(codes[~known][0])
      raise ValueError(
        f'the character {unknown!r} is not among the {len(self.alphabet)} of the training split; use the '
        "tokenizer 'char', which encodes others as bytes"
      )
    out = []
    for start, stop in _runs(known):
      if known[start]:
        out.append(ids[start:stop])
      else:
        data = np.frombuffer(text[start:stop].encode(), np.uint8)
        out.append(data.astype(np.int32) + self.eos_id + 1)
    return np.concatenate(out)

  @functools.cached_property
  def _alphabet_codes(self) -> np.ndarray:
    return _code_points(self.alphabet)


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode('utf-32-le'), np.uint32)


def _runs(flags: np.ndarray) -> list[tuple[int, int]]:
  """Returns (start, stop) of each run of equal values."""
  bounds = [0, *(np.flatnonzero(np.diff(flags)) + 1).tolist(), len(flags)]
  return list(zip(bounds, bounds[1:]))
