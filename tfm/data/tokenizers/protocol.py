"""What a tokenizer is: text to integers and back, with nothing lost."""

import abc
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from tfm import spec
from tfm.data import tokenizers


@dataclasses.dataclass(frozen=True)
class Tokenizer(abc.ABC):
  """Text to token ids and back.

  The fields of a subclass are the literals of its spec and, last and with a default, what training
  finds, in types that JSON knows. A subclass has one special token, `eos_id`, which ends every
  document and begins every text.

  Attributes:
    is_lossless: whether the pieces of a text's tokens are the text.
    needs_training: whether it is made of the texts, or is there without them.
  """

  is_lossless: ClassVar[bool] = True
  needs_training: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def is_trained(self) -> bool:
    """Whether it can encode."""

  @abc.abstractmethod
  def train(self, texts: Iterable[str]) -> 'Tokenizer':
    """Returns the tokenizer that the texts of the training split give; always the same one."""

  @property
  @abc.abstractmethod
  def pieces(self) -> Sequence[bytes]:
    """The bytes that each token stands for; none for `eos_id`."""

  @property
  @abc.abstractmethod
  def eos_id(self) -> int:
    """The token between documents."""

  @property
  def bos_id(self) -> int:
    """The token before a text that is read as a whole or written: that between documents, unless there is
    another.
    """
    return self.eos_id

  @property
  def source_prefix(self) -> tuple[int, ...]:
    """The tokens before a source."""
    return ()

  @property
  def target_prefix(self) -> tuple[int, ...]:
    """The first tokens of a target, behind `bos_id`."""
    return ()

  @property
  def special_token_ids(self) -> Mapping[str, int]:
    """Tokens that an objective may ask for, by the names of `tfm`, and that are there already."""
    return {}

  @abc.abstractmethod
  def encode(self, text: str) -> np.ndarray:
    """The tokens of a text, int32 [N], without `eos_id`; their pieces joined are the text."""

  def encode_source(self, text: str) -> np.ndarray:
    """Those of the source of a pair, which some tokenizers cut up by rules of its own."""
    return self.encode(text)

  def source(self, text: str) -> np.ndarray:
    """All that a source is: what stands before it, its tokens, its end; int32 [N]."""
    return np.array([*self.source_prefix, *self.encode_source(text), self.eos_id], np.int32)

  def target(self, text: str = '') -> np.ndarray:
    """What a target is continued from that begins with a text, int32 [N]."""
    return np.array([self.bos_id, *self.target_prefix, *self.encode(text)], np.int32)

  @property
  def vocab_size(self) -> int:
    return len(self.pieces)

  @functools.cached_property
  def token_bytes(self) -> np.ndarray:
    """The number of bytes of each token, int32 [V]; 0 for `eos_id`."""
    return np.array([len(piece) for piece in self.pieces], np.int32)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """The text of tokens; `eos_id` gives nothing, bytes that are not UTF-8 give U+FFFD.

    Raises:
      ValueError: for an id outside of the vocabulary.
    """
    ids = np.asarray(ids, np.int64).tolist()
    if wrong := [i for i in ids if not 0 <= i < self.vocab_size]:
      raise ValueError(f'token {wrong[0]} is not in the vocabulary of {self.vocab_size} tokens')
    return b''.join([self.pieces[i] for i in ids]).decode(errors='replace')

  def state(self) -> dict[str, Any]:
    """The tokenizer as a JSON object, to travel with a checkpoint; see `load`."""
    return {'name': type(self).__module__.rpartition('.')[2], **dataclasses.asdict(self)}

  @functools.cached_property
  def identity(self) -> str:
    """A readable name with a hash of the state, such as "sentencepiece-8192-1f0a…"."""
    state = self.state()
    shown = [state['name'], *(str(v) for k, v in state.items() if k in ('kind', 'size'))]
    digest = hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()
    return re.sub(r'[^\w-]', '_', '-'.join([*shown, digest]))


def load(state: Mapping[str, Any]) -> Tokenizer:
  """The trained tokenizer of `Tokenizer.state()`."""
  fields = {key: value for key, value in state.items() if key != 'name'}
  return spec.find_variant(state['name'], tokenizers, Tokenizer)(**fields)


def no_model(tokenizer: Tokenizer) -> ValueError:
  """The error of an untrained tokenizer that is asked to encode."""
  name = type(tokenizer).__module__.rpartition('.')[2]
  return ValueError(f'the tokenizer {name!r} is not trained; call train, or load its state')
