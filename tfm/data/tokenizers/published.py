"""The tokenizer of a published checkpoint."""

import base64
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np
import sentencepiece

from tfm.data.tokenizers import protocol
from tfm.errors import importing_extra, parsing, read_json_object, require


with importing_extra('hub'):
  import tokenizers
  from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer


JSON, PIECES, WORDS, MERGES = (
  'tokenizer.json',
  ('spiece.model', 'tokenizer.model'),
  'vocab.txt',
  ('vocab.json', 'merges.txt'),
)
SPACE = '▁'  # SentencePiece's symbol for a space
MASK = '<mask>'  # tfm's name of the token that masks another


@dataclasses.dataclass(frozen=True)
class Published(protocol.Tokenizer):
  """The tokenizer in the folder of a checkpoint: tokenizer.json, read by `tokenizers`; otherwise spiece.model
  or tokenizer.model, read by `sentencepiece`; otherwise WordPiece's vocab.txt; otherwise the vocab.json and
  merges.txt of byte pair encoding.

  Most of these normalize a text first (lower case, added or merged spaces); for them bits per byte are not
  available, and places in a text cannot be found by counting bytes. GPT-2's byte pair encoding is lossless.

  Attributes:
    folder: the folder.
    model: the content read from it: JSON, or a SentencePiece model in base64.
    kind: 'json' or 'sentencepiece'.
    size: the size of the model's vocabulary according to config.json; it may be greater than the number of
      tokens.
    begin, end, mask: the ids of the first token of a target, the end of a text, and the mask token; None:
      there is none.
    before: the tokens before a text.
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
    model = json.loads(self.model)
    pre_tokenizer = model.get('pre_tokenizer') or {}
    return (
      pre_tokenizer.get('type') == 'ByteLevel'
      and not pre_tokenizer.get('add_prefix_space')
      and model.get('normalizer') is None
    )

  def train(self, texts: Iterable[str]) -> 'Published':
    """Reads the folder; the texts are not used.

    Raises:
      ValueError: if it has no tokenizer, or does not define the end of a text.
    """
    with parsing(self.folder, 'the folder of a tokenizer'):
      return self._read_folder()

  def _read_folder(self) -> 'Published':
    folder = pathlib.Path(self.folder).expanduser()
    config = _read_json(folder / 'config.json')
    kind, model = _read_model(folder)
    tokenizer = dataclasses.replace(self, kind=kind, model=model, size=config.get('vocab_size', 0))
    tokenizer._require_unknown_token()
    before, after = tokenizer._template_ids()
    special = _read_json(folder / 'special_tokens_map.json') | _read_json(folder / 'tokenizer_config.json')

    def token_id(name):
      token = special.get(f'{name}_token')
      token = token.get('content') if isinstance(token, Mapping) else token
      configured = config.get(f'{name}_token_id')
      if token and configured is None:
        return tokenizer._token_id(token)
      return configured[0] if isinstance(configured, list) else configured

    end = next((x for x in (token_id('eos'), token_id('sep'), *after[-1:]) if x is not None), None)
    if end is None:
      raise ValueError(
        f'{self.folder} does not define the end of a text; set eos_token_id in its config.json'
      )
    first_tokens = config.get('decoder_start_token_id'), *before[:1], token_id('bos'), end
    mask = token_id('mask')
    if mask is None:
      mask = next(filter(None, map(tokenizer._token_id, ('[MASK]', MASK))), None)
    return dataclasses.replace(
      tokenizer,
      begin=next(x for x in first_tokens if x is not None),
      end=end,
      before=tuple(before),
      mask=mask,
      size=max(tokenizer.size, len(tokenizer._strings)),
    )

  @functools.cached_property
  def pieces(self):
    special = (
      set()
      if self.kind != 'json'
      else {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
    )
    pieces = (b'' if i in special else self._piece(text) for i, text in enumerate(self._strings))
    return (*pieces, *(b'' for _ in range(self.size - len(self._strings))))

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
      raise protocol.untrained_error(self)
    if self.mask is not None:
      text = text.replace(MASK, self._strings[self.mask])
    if self.kind == 'sentencepiece':
      return np.array(self._sentencepiece.encode(text), np.int32)
    return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

  @functools.cached_property
  def control_tokens(self):
    if self.kind == 'sentencepiece':
      return {x: i for i, x in enumerate(self._strings) if self._sentencepiece.is_control(i)}
    return {
      token.content: i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
    }

  def encode_markup(self, text):
    if self.kind == 'sentencepiece':
      return super().encode_markup(text)
    return np.array(self._markup_tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

  def encode_plain(self, text):
    if self.kind == 'sentencepiece':
      return np.array(self._sentencepiece.encode(text), np.int32)
    return np.array(self._plain_tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

  def decode(self, ids):
    ids = [i for i in np.asarray(ids, np.int64).tolist() if i < len(self._strings)]
    if self.kind == 'sentencepiece':
      return self._sentencepiece.decode(ids)
    return self._tokenizer.decode(ids, skip_special_tokens=True)

  def _require_unknown_token(self) -> None:
    """Raises ValueError for a vocabulary of words without the token of unknown ones."""
    model = json.loads(self.model)['model'] if self.kind == 'json' else {}
    unknown = model.get('unk_token')
    require(
      model.get('type') not in ('WordPiece', 'WordLevel') or unknown in model['vocab'],
      f'{self.folder} has no {unknown!r} in its vocabulary, the token of unknown words; add it',
    )

  def _template_ids(self) -> tuple[list[int], list[int]]:
    """Returns the tokens that the tokenizer itself adds before and after a text."""
    if self.kind == 'sentencepiece':
      return [], []
    plain, extended = (self._tokenizer.encode('a', add_special_tokens=add).ids for add in (False, True))
    first = next(i for i in range(len(extended)) if extended[i : i + len(plain)] == plain)
    return extended[:first], extended[first + len(plain) :]

  def _token_id(self, token: str) -> int | None:
    return self._strings.index(token) if token in self._strings else None

  @property
  def _tokenizer(self) -> tokenizers.Tokenizer:
    # A text that contains the characters <|endoftext|> does not end there.
    return self._plain_tokenizer if self.mask is None else self._markup_tokenizer

  @functools.cached_property
  def _plain_tokenizer(self) -> tokenizers.Tokenizer:
    return self._load_tokenizer(encode_special_tokens=True)

  @functools.cached_property
  def _markup_tokenizer(self) -> tokenizers.Tokenizer:
    return self._load_tokenizer(encode_special_tokens=False)

  def _load_tokenizer(self, encode_special_tokens: bool) -> tokenizers.Tokenizer:
    """Args: encode_special_tokens: whether the strings of special tokens are text."""
    tokenizer = tokenizers.Tokenizer.from_str(self.model)
    tokenizer.encode_special_tokens = encode_special_tokens
    # The packing truncates and pads rows.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer

  @functools.cached_property
  def _sentencepiece(self) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=base64.b64decode(self.model))

  @functools.cached_property
  def _strings(self) -> list[str]:
    """The string of each token."""
    if self.kind == 'sentencepiece':
      return [self._sentencepiece.id_to_piece(i) for i in range(len(self._sentencepiece))]
    ids = self._tokenizer.get_vocab(with_added_tokens=True)
    strings = dict(zip(ids.values(), ids))
    return [strings.get(i, '') for i in range(max(strings) + 1)]

  def _piece(self, text: str) -> bytes:
    """Returns the approximate bytes of a token, for display only: texts are decoded as a whole."""
    if self.kind == 'json' and '"ByteLevel"' in self.model:
      return bytes(_BYTES[c] for c in text) if all(c in _BYTES for c in text) else text.encode()
    return text.removeprefix('##').replace(SPACE, ' ').encode()


def _read_model(folder: pathlib.Path) -> tuple[str, str]:
  """Returns the kind of tokenizer in a folder, and its model as text."""
  if (folder / JSON).exists():
    return 'json', (folder / JSON).read_text(encoding='utf-8')
  for name in PIECES:
    if (folder / name).exists():
      return 'sentencepiece', base64.b64encode((folder / name).read_bytes()).decode()
  if (folder / WORDS).exists():
    lowercase = _read_json(folder / 'tokenizer_config.json').get('do_lower_case', True)
    return 'json', BertWordPieceTokenizer(str(folder / WORDS), lowercase=lowercase).to_str()
  if all((folder / name).exists() for name in MERGES):
    return 'json', ByteLevelBPETokenizer(*(str(folder / name) for name in MERGES)).to_str()
  raise ValueError(
    f'{folder} has no tokenizer; it needs {JSON}, {" or ".join(PIECES)}, {WORDS}, or {" with ".join(MERGES)}'
  )


def _read_json(path: pathlib.Path) -> dict:
  return read_json_object(path) if path.exists() else {}


def _byte_of_character() -> dict[str, int]:
  """Returns character → byte in GPT-2's vocabulary (Radford et al. 2019, released code): a printable byte is
  its own character, the others are characters from 256 on.
  """
  printable = [*range(ord('!'), ord('~') + 1), *range(ord('¡'), ord('¬') + 1), *range(ord('®'), ord('ÿ') + 1)]
  others = [byte for byte in range(256) if byte not in printable]
  return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_of_character()
