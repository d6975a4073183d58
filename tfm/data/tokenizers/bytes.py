"""UTF-8 bytes as tokens."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from tfm.data.tokenizers import protocol


@dataclasses.dataclass(frozen=True)
class Bytes(protocol.Tokenizer):
  """Token i is the byte i; 256 is the end of a text. There is nothing to train."""

  is_trained = True
  eos_id = 256
  pieces = (*(bytes([i]) for i in range(256)), b'')

  def train(self, texts: Iterable[str]) -> 'Bytes':
    return self

  def encode(self, text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)
