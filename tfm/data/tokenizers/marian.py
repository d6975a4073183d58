"""Marian's tokenizer, that came with a published checkpoint."""

import base64
import dataclasses
import functools
import json
import pathlib
import re

import numpy as np
import sentencepiece

from tfm.data.tokenizers import protocol


SOURCE, TARGET = 'source.spm', 'target.spm'
VOCAB, TARGET_VOCAB = 'vocab.json', 'target_vocab.json'
FILES = SOURCE, TARGET, VOCAB
UNKNOWN, END, PAD = '<unk>', '</s>', '<pad>'
SPACE = '▁'  # what SentencePiece writes for a space
LANGUAGE = re.compile(r'>>.*?<<', re.DOTALL)  # which to write, before a source: one token


@dataclasses.dataclass(frozen=True)
class Marian(protocol.Tokenizer):
  """SentencePiece cuts a text up, sources by one model and targets by another, and a table of its own numbers
  the pieces (Junczys-Dowmunt et al. 2018; Tiedemann & Thottingal 2020, OPUS-MT): source.spm, target.spm,
  vocab.json, and where targets have a table of their own, target_vocab.json.

  A text is normalised before it is cut up, so its bytes are not told.

  Attributes:
    folder: where they lie.
    sources: whether it is of the sources alone, where these have a vocabulary of their own.
    reads, writes: what was read there, the SentencePiece models of sources and of texts that are written,
      in base64.
    table: number of each piece, as JSON.
    size: rows of the model's vocabulary, as config.json says.
    begin, end: numbers of the tokens that begin a written text, and end one.
  """

  is_lossless = needs_training = False

  folder: str
  sources: bool = False
  reads: str = dataclasses.field(default='', repr=False)
  writes: str = dataclasses.field(default='', repr=False)
  table: str = dataclasses.field(default='', repr=False)
  size: int = 0
  begin: int = 0
  end: int = 0

  @property
  def is_trained(self):
    return bool(self.table)

  def train(self, texts):
    """Reads the folder; the texts are not looked at.

    Raises:
      ValueError: for a file that is not there, or a table without the token of unknown pieces, or that
        which ends a text.
    """
    folder = pathlib.Path(self.folder).expanduser()
    if missing := [name for name in FILES if not (folder / name).exists()]:
      raise ValueError(
        f'{self.folder} lacks {" and ".join(missing)}, and a tokenizer of Marian is {", ".join(FILES)}'
      )
    own = not self.sources and (folder / TARGET_VOCAB).exists()
    table = (folder / (TARGET_VOCAB if own else VOCAB)).read_text()
    numbers = json.loads(table)
    if lacking := [name for name in (UNKNOWN, END) if name not in numbers]:
      raise ValueError(
        f'{self.folder} has no {lacking[0]!r} in {TARGET_VOCAB if own else VOCAB}; a tokenizer of Marian has one'
      )
    config = folder / 'config.json'
    fields = json.loads(config.read_text()) if config.exists() else {}
    size = (fields.get('decoder_vocab_size') if not self.sources else None) or fields.get('vocab_size', 0)
    begin = fields.get('decoder_start_token_id')
    return dataclasses.replace(
      self,
      table=table,
      reads=_read(folder / SOURCE),
      writes=_read(folder / TARGET),
      end=numbers[END],
      size=max(size, *(number + 1 for number in numbers.values())),
      begin=numbers.get(PAD, numbers[END]) if begin is None else begin,
    )

  @functools.cached_property
  def pieces(self):
    made = [b''] * self.size
    for piece, number in self._numbers.items():
      made[number] = b'' if number in self._special else piece.replace(SPACE, ' ').encode()
    return tuple(made)

  @property
  def eos_id(self):
    return self.end

  @property
  def bos_id(self):
    return self.begin

  def encode(self, text):
    return self._encode(text, self.writes)

  def encode_source(self, text):
    return self._encode(text, self.reads)

  def decode(self, ids):
    pieces = [
      self._pieces[i]
      for i in np.asarray(ids, np.int64).tolist()
      if i in self._pieces and i not in self._special
    ]
    return _processor(self.writes).decode_pieces(pieces).replace(SPACE, ' ').strip()

  def _encode(self, text: str, model: str) -> np.ndarray:
    if not self.is_trained:
      raise protocol.no_model(self)
    language = LANGUAGE.match(text)
    first = [language[0]] if language else []
    pieces = first + _processor(model).encode(text[language.end() if language else 0 :], out_type=str)
    return np.array([self._numbers.get(piece, self._numbers[UNKNOWN]) for piece in pieces], np.int32)

  @functools.cached_property
  def _numbers(self) -> dict[str, int]:
    return json.loads(self.table)

  @functools.cached_property
  def _pieces(self) -> dict[int, str]:
    return {number: piece for piece, number in self._numbers.items()}

  @functools.cached_property
  def _special(self) -> set[int]:
    return {self._numbers[name] for name in (UNKNOWN, END, PAD) if name in self._numbers}


@functools.lru_cache(maxsize=4)
def _processor(model: str) -> sentencepiece.SentencePieceProcessor:
  return sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(model))


def _read(path: pathlib.Path) -> str:
  return base64.b64encode(path.read_bytes()).decode()
