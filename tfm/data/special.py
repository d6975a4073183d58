"""A tokenizer with tokens of an objective's behind its own."""

import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np

from tfm.data.tokenizers.protocol import Tokenizer


@dataclasses.dataclass(frozen=True)
class Special(Tokenizer):
  """`tokenizer`, and behind its vocabulary one token for each of `names`, such as '<mask>'.

  A name in a text is that token; so this is for what a user writes and reads, and no corpus is encoded by it.
  Where words are written with the space before them, the space before a name is its token's, too.
  """

  tokenizer: Tokenizer
  names: tuple[str, ...]

  @property
  def is_trained(self):
    return self.tokenizer.is_trained

  def train(self, texts):
    return dataclasses.replace(self, tokenizer=self.tokenizer.train(texts))

  @property
  def pieces(self):
    return *self.tokenizer.pieces, *(name.encode() for name in self.names)

  @functools.cached_property
  def token_bytes(self):
    """The number of bytes of text that each token stands for: none for a special one."""
    return np.append(self.tokenizer.token_bytes, np.zeros(len(self.names), np.int32))

  @property
  def eos_id(self):
    return self.tokenizer.eos_id

  @property
  def bos_id(self):
    return self.tokenizer.bos_id

  @property
  def source_prefix(self):
    return self.tokenizer.source_prefix

  @property
  def target_prefix(self):
    return self.tokenizer.target_prefix

  def encode(self, text):
    return self._named(text, self.tokenizer.encode)

  def encode_source(self, text):
    return self._named(text, self.tokenizer.encode_source)

  def _named(self, text: str, encode: Callable[[str], np.ndarray]) -> np.ndarray:
    spaced = any(piece[:1] == b' ' and len(piece) > 1 for piece in self.tokenizer.pieces)
    parts = re.split(f'{" ?" if spaced else ""}({"|".join(map(re.escape, self.names))})', text)
    ids = [
      [self.tokenizer.vocab_size + self.names.index(part)] if part in self.names else encode(part)
      for part in parts
      if part
    ]
    return np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32)


def extended(tokenizer: Tokenizer | None, names: tuple[str, ...]) -> Tokenizer | None:
  """The tokenizer with some names; itself for none, or if it has them."""
  return Special(tokenizer, missing) if (missing := lacking(tokenizer, names)) else tokenizer


def lacking(tokenizer: Tokenizer | None, names: tuple[str, ...]) -> tuple[str, ...]:
  """The names that a tokenizer has not."""
  return tuple(name for name in names if tokenizer is None or name not in tokenizer.special_token_ids)


def number(tokenizer: Tokenizer, name: str) -> int:
  """The token of a name: its own, or the first behind its vocabulary."""
  return tokenizer.special_token_ids.get(name, tokenizer.vocab_size)


def plain(tokenizer: Tokenizer | None) -> Tokenizer | None:
  """The tokenizer without such names; None of what has none."""
  return tokenizer.tokenizer if isinstance(tokenizer, Special) else tokenizer
