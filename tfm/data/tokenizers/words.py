"""Words as tokens."""

import dataclasses
import functools
import re
from collections.abc import Iterable

import numpy as np

from tfm.data.tokenizers import protocol


WORD = re.compile(r' ?\S+|\s')


@dataclasses.dataclass(frozen=True)
class Words(protocol.Tokenizer):
  """The words of the training split, each with the space before it, in the order of their code points; then
  the end of a text.

  A word ends at white space. A word that is not in the training split is encoded as its UTF-8 bytes, whose
  256 tokens
  are the last, and so is white space other than a single space before a word: there is no unknown token.
  """

  known: str = ''  # the words, separated by line ends, which no word contains

  @property
  def is_trained(self) -> bool:
    return bool(self.known)

  def train(self, texts: Iterable[str]) -> 'Words':
    words = set()
    for text in texts:
      words.update(WORD.findall(text))
    return Words('\n'.join(sorted(word for word in words if not word.isspace())))

  @functools.cached_property
  def pieces(self) -> tuple[bytes, ...]:
    return (*(word.encode() for word in self._ids), b'', *(bytes([i]) for i in range(256)))

  @property
  def eos_id(self) -> int:
    return len(self._ids)

  def encode(self, text: str) -> np.ndarray:
    if not self.is_trained:
      raise protocol.untrained_error(self)
    ids, first_byte = [], self.eos_id + 1
    for word in WORD.findall(text):
      if (number := self._ids.get(word)) is None:
        ids += [first_byte + byte for byte in word.encode()]
      else:
        ids.append(number)
    return np.array(ids, np.int32)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return {word: number for number, word in enumerate(self.known.split('\n') if self.known else ())}
