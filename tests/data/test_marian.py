"""Marian's tokenizer: two ways of cutting a text up, and a table of its own."""

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
  made = Marian(str(tmp_path)).train(())
  numbers = json.loads((tmp_path / 'vocab.json').read_text())
  cut = {
    name: sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / f'{name}.spm')).encode(
      TEXT, out_type=str
    )
    for name in ('source', 'target')
  }
  assert cut['source'] != cut['target']
  assert made.encode_source(TEXT).tolist() == [numbers.get(piece, 1) for piece in cut['source']]
  assert made.encode(TEXT).tolist() == [numbers.get(piece, 1) for piece in cut['target']]
  assert made.source_ids('>>de<< ' + TEXT).tolist() == [numbers['>>de<<'], *made.encode_source(' ' + TEXT), 0]
  assert (made.bos_id, made.eos_id, made.vocab_size, made.is_lossless) == (size - 1, 0, size + 3, False)
  pieces = [piece for piece in cut['source'] if piece in numbers]
  assert (
    made.decode([size - 1, *(numbers[piece] for piece in pieces), 1, 0])
    == ''.join(pieces).replace('▁', ' ').strip()
  )
  assert made.pieces[numbers['>>de<<']] == b'>>de<<' and made.pieces[0] == made.pieces[size + 2] == b''
  again = load(json.loads(json.dumps(made.state())))
  assert (
    again.identity == made.identity
    and again.encode_source(TEXT).tolist() == made.encode_source(TEXT).tolist()
  )


def test_a_table_of_the_targets(tmp_path):
  source, target = marian_folder.write(tmp_path, separate=True)
  (tmp_path / 'config.json').write_text(json.dumps(dict(vocab_size=source, decoder_vocab_size=target)))
  one, other = (Marian(str(tmp_path), sources=side).train(()) for side in (True, False))
  assert (one.vocab_size, other.vocab_size) == (source, target)
  for made, file, name in ((one, 'vocab.json', 'source'), (other, 'target_vocab.json', 'target')):
    numbers = json.loads((tmp_path / file).read_text())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / f'{name}.spm')).encode(
      TEXT, out_type=str
    )
    ids = made.encode_source(TEXT) if made is one else made.encode(TEXT)
    assert ids.tolist() == [numbers.get(piece, 1) for piece in pieces] and made.bos_id == numbers['<pad>']


def test_sources_are_read_as_such_wherever_they_are(tmp_path):
  marian_folder.write(tmp_path)
  made = Marian(str(tmp_path)).train(())
  assert not np.array_equal(made.encode(TEXT), made.encode_source(TEXT))
  documents = [
    InfiniteDocuments('made up', [TEXT], made, field).document(0).tolist() for field in ('source', 'target')
  ]
  assert documents == [[*made.encode_source(TEXT), 0], [*made.encode(TEXT), 0]]
  special = ExtendedTokenizer(made, ('<x>',))
  assert special.source_ids(f'{TEXT}<x>').tolist() == [*made.encode_source(TEXT), made.vocab_size, 0]


@pytest.mark.parametrize(
  'file, text, sentence',
  [
    ('target.spm', None, 'has no target.spm; a Marian tokenizer needs source.spm, target.spm, vocab.json'),
    ('vocab.json', '{"</s>": 0}', "has no '<unk>' in vocab.json"),
  ],
)
def test_refusals(tmp_path, file, text, sentence):
  marian_folder.write(tmp_path)
  if text is None:
    (tmp_path / file).unlink()
  else:
    (tmp_path / file).write_text(text)
  with pytest.raises(ValueError, match=sentence):
    Marian(str(tmp_path)).train(())
