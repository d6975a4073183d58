"""The Marian tokenizer: separate models of sources and targets, and its table of pieces."""

import json

import numpy as np
import pytest
import sentencepiece

from tests.data import marian_folder
from tfm.data.special_tokens import ExtendedTokenizer
from tfm.data.tokenizers.marian import Marian
from tfm.data.tokenizers.protocol import load
from tfm.data.tokens import InfiniteDocuments


TEXT = marian_folder.SOURCE[1]


def test_one_table(tmp_path):
  [size] = marian_folder.write(tmp_path)
  (tmp_path / 'config.json').write_text(
    json.dumps(dict(vocab_size=size + 3, decoder_start_token_id=size - 1))
  )
  tokenizer = Marian(str(tmp_path)).train(())
  numbers = json.loads((tmp_path / 'vocab.json').read_text())
  segmented = {
    name: sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / f'{name}.spm')).encode(
      TEXT, out_type=str
    )
    for name in ('source', 'target')
  }
  assert segmented['source'] != segmented['target']
  assert tokenizer.encode_source(TEXT).tolist() == [numbers.get(piece, 1) for piece in segmented['source']]
  assert tokenizer.encode(TEXT).tolist() == [numbers.get(piece, 1) for piece in segmented['target']]
  assert tokenizer.source_ids('>>de<< ' + TEXT).tolist() == [
    numbers['>>de<<'],
    *tokenizer.encode_source(' ' + TEXT),
    0,
  ]
  assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size, tokenizer.is_lossless) == (
    size - 1,
    0,
    size + 3,
    False,
  )
  pieces = [piece for piece in segmented['source'] if piece in numbers]
  assert (
    tokenizer.decode([size - 1, *(numbers[piece] for piece in pieces), 1, 0])
    == ''.join(pieces).replace('▁', ' ').strip()
  )
  assert (
    tokenizer.pieces[numbers['>>de<<']] == b'>>de<<'
    and tokenizer.pieces[0] == tokenizer.pieces[size + 2] == b''
  )
  again = load(json.loads(json.dumps(tokenizer.state())))
  assert (
    again.identity == tokenizer.identity
    and again.encode_source(TEXT).tolist() == tokenizer.encode_source(TEXT).tolist()
  )


def test_separate_tables(tmp_path):
  source, target = marian_folder.write(tmp_path, separate=True)
  (tmp_path / 'config.json').write_text(json.dumps(dict(vocab_size=source, decoder_vocab_size=target)))
  one, other = (Marian(str(tmp_path), sources=side).train(()) for side in (True, False))
  assert (one.vocab_size, other.vocab_size) == (source, target)
  for tokenizer, file, name in ((one, 'vocab.json', 'source'), (other, 'target_vocab.json', 'target')):
    numbers = json.loads((tmp_path / file).read_text())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / f'{name}.spm')).encode(
      TEXT, out_type=str
    )
    ids = tokenizer.encode_source(TEXT) if tokenizer is one else tokenizer.encode(TEXT)
    assert (
      ids.tolist() == [numbers.get(piece, 1) for piece in pieces] and tokenizer.bos_id == numbers['<pad>']
    )


def test_sources_use_the_source_model_everywhere(tmp_path):
  marian_folder.write(tmp_path)
  tokenizer = Marian(str(tmp_path)).train(())
  assert not np.array_equal(tokenizer.encode(TEXT), tokenizer.encode_source(TEXT))
  documents = [
    InfiniteDocuments('made up', [TEXT], tokenizer, field).document(0).tolist()
    for field in ('source', 'target')
  ]
  assert documents == [[*tokenizer.encode_source(TEXT), 0], [*tokenizer.encode(TEXT), 0]]
  special = ExtendedTokenizer(tokenizer, ('<x>',))
  assert special.source_ids(f'{TEXT}<x>').tolist() == [
    *tokenizer.encode_source(TEXT),
    tokenizer.vocab_size,
    0,
  ]


@pytest.mark.parametrize(
  'file, text, sentence',
  [
    ('target.spm', None, 'has no target.spm; a Marian tokenizer needs source.spm, target.spm, vocab.json'),
    ('vocab.json', '{"</s>": 0}', "has no '<unk>' in vocab.json"),
  ],
)
def test_invalid_folders_are_rejected(tmp_path, file, text, sentence):
  marian_folder.write(tmp_path)
  if text is None:
    (tmp_path / file).unlink()
  else:
    (tmp_path / file).write_text(text)
  with pytest.raises(ValueError, match=sentence):
    Marian(str(tmp_path)).train(())
