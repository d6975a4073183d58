"""The tokenizer slot: text to integers and back."""

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
from tfm.errors import require


@dataclasses.dataclass(frozen=True)
class Tokenizer(abc.ABC):
  """Text to token ids and back.

  The fields of a subclass are the literals of its spec and, last and with a default, the result of training,
  in types that JSON supports. A subclass has one special token, `eos_id`, which ends every document and
  begins every text.

  Attributes:
    is_lossless: whether the pieces of a text's tokens join to the text.
    needs_training: whether the texts determine it.
  """

  is_lossless: ClassVar[bool] = True
  needs_training: ClassVar[bool] = True

  @property
  @abc.abstractmethod
  def is_trained(self) -> bool:
    """Whether it can encode."""

  @abc.abstractmethod
  def train(self, texts: Iterable[str]) -> 'Tokenizer':
    """Returns the tokenizer trained on the texts of the training split; deterministic."""

  @property
  @abc.abstractmethod
  def pieces(self) -> Sequence[bytes]:
    """The bytes of each token; empty for `eos_id`."""

  @property
  @abc.abstractmethod
  def eos_id(self) -> int:
    """The token between documents."""

  @property
  def bos_id(self) -> int:
    """The token at the beginning of a text: `eos_id`, unless the tokenizer has a separate one."""
    return self.eos_id

  @property
  def source_prefix(self) -> tuple[int, ...]:
    """The tokens before a source."""
    return ()

  @property
  def target_prefix(self) -> tuple[int, ...]:
    """The first tokens of a target, after `bos_id`."""
    return ()

  @property
  def special_token_ids(self) -> Mapping[str, int]:
    """The special tokens of objectives, such as '<mask>', that the vocabulary already has: name → id."""
    return {}

  @abc.abstractmethod
  def encode(self, text: str) -> np.ndarray:
    """Returns the tokens of a text, int32 [N], without `eos_id`; their pieces join to the text."""

  @property
  def control_tokens(self) -> Mapping[str, int]:
    """The tokens that a chat template spells and no text can, such as '<|im_start|>': string → id."""
    return {}

  def encode_markup(self, text: str) -> np.ndarray:
    """Returns the tokens of a text that a template wrote, those of `control_tokens` among them."""
    if not self.control_tokens:
      return self.encode(text)
    longest_first = sorted(self.control_tokens, key=len, reverse=True)
    parts = re.split(f'({"|".join(map(re.escape, longest_first))})', text)
    ids = [
      [self.control_tokens[part]] if part in self.control_tokens else self.encode_plain(part)
      for part in parts
      if part
    ]
    return np.concatenate([np.zeros(0, np.int32), *ids]).astype(np.int32)

  def encode_plain(self, text: str) -> np.ndarray:
    """Returns the tokens of a text that somebody else wrote: nothing in it is a special token."""
    return self.encode(text)

  def encode_source(self, text: str) -> np.ndarray:
    """Returns the tokens of the source of a pair, which some tokenizers encode differently."""
    return self.encode(text)

  def source_ids(self, text: str) -> np.ndarray:
    """Returns a complete source: its prefix, its tokens and its end; int32 [N]."""
    return np.array([*self.source_prefix, *self.encode_source(text), self.eos_id], np.int32)

  def target_prompt_ids(self, text: str = '') -> np.ndarray:
    """Returns the decoder's first inputs for a target that begins with a text, int32 [N]."""
    return np.array([self.bos_id, *self.target_prefix, *self.encode(text)], np.int32)

  @property
  def vocab_size(self) -> int:
    return len(self.pieces)

  @functools.cached_property
  def token_bytes(self) -> np.ndarray:
    """The number of bytes of each token, int32 [V]; 0 for `eos_id`."""
    return np.array([len(piece) for piece in self.pieces], np.int32)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Returns the text of tokens; `eos_id` adds nothing, bytes that are not UTF-8 become U+FFFD.

    Raises:
      ValueError: for an id outside of the vocabulary.
    """
    ids = np.asarray(ids, np.int64).tolist()
    if invalid := [i for i in ids if not 0 <= i < self.vocab_size]:
      raise ValueError(f'token {invalid[0]} is not in the vocabulary of {self.vocab_size} tokens')
    return b''.join([self.pieces[i] for i in ids]).decode(errors='replace')

  def state(self) -> dict[str, Any]:
    """Returns the tokenizer as a JSON object, for checkpoints; `load` restores it."""
    return {'name': type(self).__module__.rpartition('.')[2], **dataclasses.asdict(self)}

  @functools.cached_property
  def identity(self) -> str:
    """A readable name with a hash of the state, such as "sentencepiece-8192-1f0a…"."""
    state = self.state()
    parts = [state['name'], *(str(v) for k, v in state.items() if k in ('kind', 'size'))]
    digest = hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()
    return re.sub(r'[^\w-]', '_', '-'.join([*parts, digest]))


@dataclasses.dataclass(frozen=True)
class PreparedTokenizer:
  """The tokenizer with which documents are already encoded.

  Attributes:
    tokenizer: trained.
    spec: from which it was trained.
  """

  tokenizer: Tokenizer
  spec: str

  def require_same(self, tokenizer: Tokenizer, name: str) -> None:
    """Refuses a tokenizer, trained or not, that is another.

    Args:
      name: of the documents, for the message.

    Raises:
      ValueError: if it is another.
    """
    if not (tokenizer.is_trained or tokenizer.needs_training):
      tokenizer = tokenizer.train(())
    expected = self.tokenizer if tokenizer.is_trained else spec.build(self.spec, tokenizers, Tokenizer)
    require(
      tokenizer == expected,
      f'{name} is prepared with the tokenizer {self.spec!r} ({self.tokenizer.identity}), and this run has '
      'another; use that one, or prepare the tokens again',
    )


def load(state: Mapping[str, Any]) -> Tokenizer:
  """Returns the trained tokenizer of `Tokenizer.state()`."""
  fields = {key: value for key, value in state.items() if key != 'name'}
  return spec.find_variant(state['name'], tokenizers, Tokenizer)(**fields)


def untrained_error(tokenizer: Tokenizer) -> ValueError:
  """Returns the error of an untrained tokenizer that should encode."""
  name = type(tokenizer).__module__.rpartition('.')[2]
  return ValueError(f'the tokenizer {name!r} is not trained; call train, or load its state')
