"""The tokenizer that came with a published checkpoint."""

import base64
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np
import sentencepiece
import tokenizers
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

from tfm.data.tokenizers import protocol


JSON, PIECES, WORDS, MERGES = (
  'tokenizer.json',
  ('spiece.model', 'tokenizer.model'),
  'vocab.txt',
  ('vocab.json', 'merges.txt'),
)
SPACE = '▁'  # what SentencePiece writes for a space
MASK = '<mask>'  # what tfm calls the token that hides another


@dataclasses.dataclass(frozen=True)
class Published(protocol.Tokenizer):
  """What lies in the folder of a checkpoint: tokenizer.json, read by `tokenizers`; else spiece.model or
  tokenizer.model, by `sentencepiece`; else WordPiece's vocab.txt; else the vocab.json and merges.txt of byte
  pairs.

  Most of them change a text before they cut it up (letters become small, spaces are added or joined); of
  those no bits per byte are told, and no place in a text is found by counting bytes. GPT-2's byte pairs lose
  nothing.

  Attributes:
    folder: where it lies.
    model: what was read there: JSON, or a SentencePiece model in base64.
    kind: 'json' or 'sentencepiece'.
    size: rows of the model's vocabulary, as config.json says; there may be more of them than tokens.
    begin, end, mask: numbers of the tokens that begin a written text, end one, and hide another; None:
      there is none.
    before: tokens that stand before a text that is read as a whole.
  """

  needs_training = False

  folder: str
  model: str = dataclasses.field(default='', repr=False)
  kind: str = ''
  size: int = 0
  begin: int | None = None
  end: int | None = None
  mask: int | None = None
  before: tuple[int, ...] = ()

  @property
  def is_trained(self):
    return bool(self.model)

  @functools.cached_property
  def is_lossless(self):
    if self.kind != 'json':
      return False
    rules = json.loads(self.model)
    before = rules.get('pre_tokenizer') or {}
    return (
      before.get('type') == 'ByteLevel'
      and not before.get('add_prefix_space')
      and rules.get('normalizer') is None
    )

  def train(self, texts: Iterable[str]) -> 'Published':
    """Reads the folder; the texts are not looked at.

    Raises:
      ValueError: if nothing in it is a tokenizer, or nothing tells the token that ends a text.
    """
    folder = pathlib.Path(self.folder).expanduser()
    fields = _json(folder / 'config.json')
    kind, model = _found(folder)
    read = dataclasses.replace(self, kind=kind, model=model, size=fields.get('vocab_size', 0))
    around = read._around()
    named = _json(folder / 'special_tokens_map.json') | _json(folder / 'tokenizer_config.json')

    def number(name):
      token = named.get(f'{name}_token')
      token = token.get('content') if isinstance(token, Mapping) else token
      told = fields.get(f'{name}_token_id')
      return read._number(token) if token and told is None else told[0] if isinstance(told, list) else told

    end = next((x for x in (number('eos'), number('sep'), *around[1][-1:]) if x is not None), None)
    if end is None:
      raise ValueError(
        f'{self.folder} does not tell the token that ends a text; eos_token_id of config.json would'
      )
    starts = fields.get('decoder_start_token_id'), *around[0][:1], number('bos'), end
    return dataclasses.replace(
      read,
      begin=next(x for x in starts if x is not None),
      end=end,
      before=tuple(around[0]),
      mask=number('mask')
      if number('mask') is not None
      else next(filter(None, map(read._number, ('[MASK]', MASK))), None),
      size=max(read.size, len(read._strings)),
    )

  @functools.cached_property
  def pieces(self):
    special = (
      set()
      if self.kind != 'json'
      else {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
    )
    read = (b'' if i in special else self._piece(text) for i, text in enumerate(self._strings))
    return (*read, *(b'' for _ in range(self.size - len(self._strings))))

  @property
  def eos_id(self):
    return self.end

  @property
  def bos_id(self):
    return self.begin

  @property
  def source_prefix(self):
    return self.before

  @property
  def target_prefix(self):
    return self.before[self.before[:1] == (self.begin,) :]

  @property
  def special_token_ids(self):
    return {} if self.mask is None else {MASK: self.mask}

  def encode(self, text):
    if not self.is_trained:
      raise protocol.no_model(self)
    if self.mask is not None:
      text = text.replace(MASK, self._strings[self.mask])
    if self.kind == 'sentencepiece':
      return np.array(self._sentencepiece.encode(text), np.int32)
    return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

  def decode(self, ids):
    ids = [i for i in np.asarray(ids, np.int64).tolist() if i < len(self._strings)]
    if self.kind == 'sentencepiece':
      return self._sentencepiece.decode(ids)
    return self._tokenizer.decode(ids, skip_special_tokens=True)

  def _around(self) -> tuple[list[int], list[int]]:
    """The tokens that its own rules put before and behind a text."""
    if self.kind == 'sentencepiece':
      return [], []
    plain, whole = (self._tokenizer.encode('a', add_special_tokens=added).ids for added in (False, True))
    first = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    return whole[:first], whole[first + len(plain) :]

  def _number(self, token: str) -> int | None:
    return self._strings.index(token) if token in self._strings else None

  @functools.cached_property
  def _tokenizer(self) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer.from_str(self.model)
    # A text that speaks of <|endoftext|> does not end there.
    made.encode_special_tokens = self.mask is None
    # Rows are ours to cut and to fill, and nothing of a text is lost here.
    made.no_truncation()
    made.no_padding()
    return made

  @functools.cached_property
  def _sentencepiece(self) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(self.model))

  @functools.cached_property
  def _strings(self) -> list[str]:
    """What each token is called."""
    if self.kind == 'sentencepiece':
      return [self._sentencepiece.id_to_piece(i) for i in range(len(self._sentencepiece))]
    numbers = self._tokenizer.get_vocab(with_added_tokens=True)
    names = dict(zip(numbers.values(), numbers))
    return [names.get(i, '') for i in range(max(names) + 1)]

  def _piece(self, text: str) -> bytes:
    """About what a token stands for, for who looks at tokens: a text is decoded as a whole."""
    if self.kind == 'json' and '"ByteLevel"' in self.model:
      return bytes(_BYTES[c] for c in text) if all(c in _BYTES for c in text) else text.encode()
    return text.removeprefix('##').replace(SPACE, ' ').encode()


def _found(folder: pathlib.Path) -> tuple[str, str]:
  """The kind of tokenizer in a folder, and its model as text."""
  if (folder / JSON).exists():
    return 'json', (folder / JSON).read_text()
  for name in PIECES:
    if (folder / name).exists():
      return 'sentencepiece', base64.b64encode((folder / name).read_bytes()).decode()
  if (folder / WORDS).exists():
    small = _json(folder / 'tokenizer_config.json').get('do_lower_case', True)
    return 'json', BertWordPieceTokenizer(str(folder / WORDS), lowercase=small).to_str()
  if all((folder / name).exists() for name in MERGES):
    return 'json', ByteLevelBPETokenizer(*(str(folder / name) for name in MERGES)).to_str()
  raise ValueError(
    f'{folder} holds no tokenizer; {JSON}, {" or ".join(PIECES)}, {WORDS}, or {" with ".join(MERGES)} would do'
  )


def _json(path: pathlib.Path) -> dict:
  return json.loads(path.read_text()) if path.exists() else {}


def _byte_letters() -> dict[str, int]:
  """The letter that stands for each byte in GPT-2's vocabulary (Radford et al. 2019, released code): its own
  where it can be printed, and one from 256 on where not.
  """
  printed = [*range(ord('!'), ord('~') + 1), *range(ord('¡'), ord('¬') + 1), *range(ord('®'), ord('ÿ') + 1)]
  others = [byte for byte in range(256) if byte not in printed]
  return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_letters()
