"""The tokenizer of a published Marian checkpoint."""

import base64
import dataclasses
import functools
import json
import pathlib
import re

import numpy as np
import sentencepiece

from tfm.data.tokenizers import protocol
from tfm.errors import parsing, require


SOURCE, TARGET = 'source.spm', 'target.spm'
VOCAB, TARGET_VOCAB = 'vocab.json', 'target_vocab.json'
FILES = SOURCE, TARGET, VOCAB
UNKNOWN, END, PAD = '<unk>', '</s>', '<pad>'
SPACE = '▁'  # SentencePiece's symbol for a space
LANGUAGE = re.compile(r'>>.*?<<', re.DOTALL)  # the target language before a source: one token


@dataclasses.dataclass(frozen=True)
class Marian(protocol.Tokenizer):
  """SentencePiece divides a text, sources with one model and targets with another, and a separate table
  numbers the pieces (Junczys-Dowmunt et al. 2018; Tiedemann & Thottingal 2020, OPUS-MT): source.spm,
  target.spm, vocab.json, and, if targets have their own table, target_vocab.json.

  A text is normalized first, so bits per byte are not available.

  Attributes:
    folder: the folder with these files.
    sources: whether it encodes only sources, if these have their own vocabulary.
    reads, writes: the SentencePiece models of sources and of targets, read from the folder, in base64.
    table: the id of each piece, as JSON.
    size: the size of the model's vocabulary according to config.json.
    begin, end: the ids of the first token of a target, and of the end of a text.
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
    """Reads the folder; the texts are not used.

    Raises:
      ValueError: for a missing file, or a table without the token of unknown pieces or of the end of a text.
    """
    with parsing(self.folder, 'the folder of a Marian tokenizer'):
      return self._read_folder()

  def _read_folder(self) -> 'Marian':
    folder = pathlib.Path(self.folder).expanduser()
    if missing := [name for name in FILES if not (folder / name).exists()]:
      raise ValueError(
        f'{self.folder} has no {" and ".join(missing)}; a Marian tokenizer needs {", ".join(FILES)}'
      )
    vocab = TARGET_VOCAB if not self.sources and (folder / TARGET_VOCAB).exists() else VOCAB
    table = (folder / vocab).read_text(encoding='utf-8')
    ids = json.loads(table)
    require(isinstance(ids, dict), f'{vocab} is not an object of pieces and ids')
    if missing := [name for name in (UNKNOWN, END) if name not in ids]:
      raise ValueError(f'{self.folder} has no {missing[0]!r} in {vocab}; a Marian tokenizer needs one')
    config = folder / 'config.json'
    fields = json.loads(config.read_text(encoding='utf-8')) if config.exists() else {}
    size = (fields.get('decoder_vocab_size') if not self.sources else None) or fields.get('vocab_size', 0)
    begin = fields.get('decoder_start_token_id')
    return dataclasses.replace(
      self,
      table=table,
      reads=_read_pieces(folder / SOURCE),
      writes=_read_pieces(folder / TARGET),
      end=ids[END],
      size=max(size, *(i + 1 for i in ids.values())),
      begin=ids.get(PAD, ids[END]) if begin is None else begin,
    )

  @functools.cached_property
  def pieces(self):
    pieces = [b''] * self.size
    for piece, i in self._ids.items():
      pieces[i] = b'' if i in self._special_ids else piece.replace(SPACE, ' ').encode()
    return tuple(pieces)

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
      if i in self._pieces and i not in self._special_ids
    ]
    return _processor(self.writes).decode_pieces(pieces).replace(SPACE, ' ').strip()

  def _encode(self, text: str, model: str) -> np.ndarray:
    if not self.is_trained:
      raise protocol.untrained_error(self)
    language = LANGUAGE.match(text)
    first = [language[0]] if language else []
    pieces = first + _processor(model).encode(text[language.end() if language else 0 :], out_type=str)
    return np.array([self._ids.get(piece, self._ids[UNKNOWN]) for piece in pieces], np.int32)

  @functools.cached_property
  def _ids(self) -> dict[str, int]:
    return json.loads(self.table)

  @functools.cached_property
  def _pieces(self) -> dict[int, str]:
    return {i: piece for piece, i in self._ids.items()}

  @functools.cached_property
  def _special_ids(self) -> set[int]:
    return {self._ids[name] for name in (UNKNOWN, END, PAD) if name in self._ids}


@functools.lru_cache(maxsize=4)
def _processor(model: str) -> sentencepiece.SentencePieceProcessor:
  return sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(model))


def _read_pieces(path: pathlib.Path) -> str:
  """The file of a SentencePiece model as text, once it has been parsed."""
  model = base64.b64encode(path.read_bytes()).decode()
  with parsing(path, 'a SentencePiece model'):
    _processor(model)
  return model
