"""Subwords by SentencePiece."""

import base64
import dataclasses
import functools
import io
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

import numpy as np
import sentencepiece
from annotated_types import Interval

from tfm.data import splitting
from tfm.data.tokenizers import protocol
from tfm.spec import PositiveInt, Size


KINDS = 'bpe', 'unigram'
UNK, EOS = 0, 1
SPACE = '▁'  # SentencePiece's symbol for a space; it reads the character itself as a space, too
SENTENCE = 2048  # characters; SentencePiece skips sentences of more than `max_sentence_length` bytes

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SentencePiece(protocol.Tokenizer):
  """Byte pair encoding or a unigram model, without normalization and with byte fallback.

  BPE: Sennrich et al. 2016, arXiv:1508.07909. Unigram: Kudo 2018, arXiv:1804.10959. SentencePiece: Kudo &
    Richardson 2018, arXiv:1808.06226. Any text is encoded without loss: every space, line end and control
    character is preserved, and characters outside of the vocabulary are encoded as their UTF-8 bytes.

  Attributes:
    size: the size of the vocabulary, including 256 bytes, the end of a text and SentencePiece's unknown
      token (which byte fallback leaves unused).
    kind: 'bpe' or 'unigram'.
    coverage: the fraction of all characters that have their own tokens.
    sample: the maximum number of characters to train on; documents are in the order of their hashes, so the
      first ones are a representative sample.
    model: the trained model, in base64.
  """

  size: Size
  kind: str = 'bpe'
  coverage: Annotated[float, Interval(gt=0, le=1)] = 0.9995
  sample: PositiveInt = 50_000_000
  model: str = dataclasses.field(default='', repr=False)

  def __post_init__(self):
    if self.kind not in KINDS:
      raise ValueError(f'kind={self.kind!r} is not a kind of sentencepiece; known: bpe, unigram')
    if not 256 + 2 < self.size:
      raise ValueError(
        f'size={self.size} has no room for the 256 bytes and 2 special tokens; use more than 258'
      )
    if not 0 < self.coverage <= 1:
      raise ValueError(f'coverage={self.coverage} must lie in (0, 1]')
    if self.sample < 1:
      raise ValueError(f'sample={self.sample} leaves no text to train on; use at least 1')

  @property
  def is_trained(self) -> bool:
    return bool(self.model)

  @property
  def eos_id(self) -> int:
    return EOS

  def train(self, texts: Iterable[str]) -> 'SentencePiece':
    model = io.BytesIO()
    try:
      sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=self._sentences(texts),
        model_writer=model,
        model_type=self.kind,
        vocab_size=self.size,
        character_coverage=self.coverage,
        byte_fallback=True,
        normalization_rule_name='identity',
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        max_sentence_length=4 * SENTENCE,
        unk_id=UNK,
        eos_id=EOS,
        bos_id=-1,
        pad_id=-1,
        num_threads=1,  # sums over several threads depend on their order
        minloglevel=2,
      )
    except RuntimeError as error:
      raise self._training_error(str(error)) from error
    return dataclasses.replace(self, model=base64.b64encode(model.getvalue()).decode())

  @functools.cached_property
  def pieces(self) -> tuple[bytes, ...]:
    return tuple(self._piece(i) for i in range(len(self._processor)))

  def encode(self, text: str) -> np.ndarray:
    ids = []
    for index, part in enumerate(text.split(SPACE)):
      if index:
        ids += self._space
      ids += self._processor.encode(part)
    return np.array(ids, np.int32)

  def _sentences(self, texts: Iterable[str]) -> Iterator[str]:
    remaining = self.sample
    for text in texts:
      yield from splitting.split_text(text[:remaining], SENTENCE // 2)
      if len(text) > remaining:
        _log.warning(
          'sentencepiece trains on the first %d characters only; set sample=… to change this', self.sample
        )
        return
      remaining -= len(text)

  @functools.cached_property
  def _processor(self) -> sentencepiece.SentencePieceProcessor:
    if not self.is_trained:
      raise protocol.untrained_error(self)
    return sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(self.model))

  @functools.cached_property
  def _space(self) -> list[int]:
    return [self._processor.piece_to_id(f'<0x{byte:02X}>') for byte in SPACE.encode()]

  def _piece(self, index: int) -> bytes:
    processor = self._processor
    if processor.is_control(index) or processor.is_unknown(index):
      return b''
    piece = processor.id_to_piece(index)
    if processor.is_byte(index):
      return bytes([int(piece[3:-1], 16)])
    return piece.replace(SPACE, ' ').encode()

  def _training_error(self, reason: str) -> ValueError:
    if most := re.search(r'too high .*<= (\d+)', reason):
      return ValueError(
        f'size={self.size} is more than the training split supports; use at most {most[1]}, or more text'
      )
    if least := re.search(r'smaller than required_chars. \d+ vs (\d+)', reason):
      return ValueError(
        f'size={self.size} has no room for the characters of the training split; '
        f'use at least {least[1]}, or a lower coverage'
      )
    return ValueError(f'sentencepiece cannot be trained with size={self.size}: {reason}')
