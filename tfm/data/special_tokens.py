"""A tokenizer with additional special tokens after its vocabulary."""

import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np

from tfm.data.tokenizers.protocol import Tokenizer


@dataclasses.dataclass(frozen=True)
class ExtendedTokenizer(Tokenizer):
  """`tokenizer`, and after its vocabulary one token for each of `names`, such as '<mask>'.

  A name in a text becomes its token, so this tokenizer is for text that a user writes or reads; a corpus is
  not encoded with it. If the tokenizer joins words with the space before them, the space before a name
  belongs to its token.
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
    """The number of bytes of text of each token: 0 for a special token."""
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
    return self._encode_names(text, self.tokenizer.encode)

  @property
  def control_tokens(self):
    return self.tokenizer.control_tokens

  def encode_markup(self, text):
    return self.tokenizer.encode_markup(text)

  def encode_plain(self, text):
    return self.tokenizer.encode_plain(text)

  def encode_source(self, text):
    return self._encode_names(text, self.tokenizer.encode_source)

  def _encode_names(self, text: str, encode: Callable[[str], np.ndarray]) -> np.ndarray:
    joins_spaces = any(piece[:1] == b' ' and len(piece) > 1 for piece in self.tokenizer.pieces)
    parts = re.split(f'{" ?" if joins_spaces else ""}({"|".join(map(re.escape, self.names))})', text)
    ids = [
      [self.tokenizer.vocab_size + self.names.index(part)] if part in self.names else encode(part)
      for part in parts
      if part
    ]
    return np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32)


def extend_tokenizer(tokenizer: Tokenizer | None, names: tuple[str, ...]) -> Tokenizer | None:
  """Returns the tokenizer with additional special tokens; the tokenizer itself if it has them all."""
  return ExtendedTokenizer(tokenizer, missing) if (missing := missing_tokens(tokenizer, names)) else tokenizer


def missing_tokens(tokenizer: Tokenizer | None, names: tuple[str, ...]) -> tuple[str, ...]:
  """Returns the names that a tokenizer has no special token for."""
  return tuple(name for name in names if tokenizer is None or name not in tokenizer.special_token_ids)


def special_token_id(tokenizer: Tokenizer, name: str) -> int:
  """Returns the id of a special token: the tokenizer's own, or the first after its vocabulary."""
  return tokenizer.special_token_ids.get(name, tokenizer.vocab_size)


def base_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer | None:
  """Returns the tokenizer without additional special tokens; None for None."""
  return tokenizer.tokenizer if isinstance(tokenizer, ExtendedTokenizer) else tokenizer
