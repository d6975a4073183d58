"""Tokenizers that come with a checkpoint: each kind of file, and what stands before and behind a text."""

import io
import json

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tfm.data.special_tokens import ExtendedTokenizer, extend_tokenizer, special_token_id
from tfm.data.tokenizers.protocol import load
from tfm.data.tokenizers.published import Published
from tfm.decoding.streaming_text import stream_text


TEXT = 'Now is better than never. Wörter, two  spaces and\na line.'


def byte_level(folder, special=('</s>',)):
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer, tokenizer.decoder = (
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    decoders.ByteLevel(),
  )
  tokenizer.train_from_iterator(
    [TEXT] * 20,
    trainers.BpeTrainer(
      vocab_size=300, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    ),
  )
  tokenizer.save(str(folder / 'tokenizer.json'))
  return tokenizer


def config(folder, **fields):
  (folder / 'config.json').write_text(json.dumps(fields))


def test_byte_pair_encoding_is_lossless(tmp_path):
  theirs = byte_level(tmp_path)
  config(tmp_path, vocab_size=304, eos_token_id=0)
  tokenizer = Published(str(tmp_path)).train(())
  ids = tokenizer.encode(TEXT)
  assert tokenizer.is_lossless and tokenizer.vocab_size == 304 and tokenizer.eos_id == tokenizer.bos_id == 0
  assert ids.tolist() == theirs.encode(TEXT).ids and tokenizer.decode(ids) == TEXT
  assert b''.join(tokenizer.pieces[i] for i in ids) == TEXT.encode() and tokenizer.pieces[0] == b''
  # The text of a special token is text.
  assert (
    0 not in tokenizer.encode('a </s> b') and tokenizer.decode(tokenizer.encode('a </s> b')) == 'a </s> b'
  )
  assert load(json.loads(json.dumps(tokenizer.state()))).encode(TEXT).tolist() == ids.tolist()


def test_wordpiece_has_special_tokens_and_a_mask(tmp_path):
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'now', 'is', 'bet', '##ter', '.']
  (tmp_path / 'vocab.txt').write_text('\n'.join(words))
  config(tmp_path, vocab_size=12)
  (tmp_path / 'special_tokens_map.json').write_text(json.dumps(dict(mask_token='[MASK]', sep_token='[SEP]')))
  tokenizer = Published(str(tmp_path)).train(())
  assert tokenizer.encode('Now is better.').tolist() == [5, 6, 7, 8, 9] and not tokenizer.is_lossless
  assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.before, tokenizer.vocab_size) == (2, 3, (2,), 12)
  assert (
    tokenizer.encode('now <mask> better').tolist() == [5, 4, 7, 8]
    and tokenizer.decode([5, 6, 7, 8, 9]) == 'now is better.'
  )
  # What an objective needs is there already.
  assert extend_tokenizer(tokenizer, ('<mask>',)) is tokenizer and special_token_id(tokenizer, '<mask>') == 4
  assert isinstance(extend_tokenizer(tokenizer, ('<mask>', '<other>')), ExtendedTokenizer)
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(dict(do_lower_case=False)))
  assert Published(str(tmp_path)).train(()).encode('Now')[0] == 1


@pytest.mark.parametrize('name', ['spiece.model', 'tokenizer.model'])
def test_sentencepiece_models(tmp_path, name):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([TEXT] * 20),
    model_writer=model,
    vocab_size=40,
    hard_vocab_limit=False,
    minloglevel=2,
  )
  (tmp_path / name).write_bytes(model.getvalue())
  config(tmp_path, vocab_size=64, eos_token_id=1, decoder_start_token_id=0)
  tokenizer = Published(str(tmp_path)).train(())
  theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
  assert (
    tokenizer.encode('is better').tolist() == theirs.encode('is better')
    and tokenizer.decode(tokenizer.encode('is better')) == 'is better'
  )
  assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size, tokenizer.is_lossless) == (
    0,
    1,
    64,
    False,
  )


def test_template_and_normalizer_are_used(tmp_path):
  tokenizer = Tokenizer(
    models.WordLevel(dict(zip(['<s>', '</s>', '<mask>', '<unk>', 'a', 'b'], range(6))), unk_token='<unk>')
  )
  tokenizer.pre_tokenizer, tokenizer.normalizer = pre_tokenizers.Whitespace(), normalizers.Lowercase()
  tokenizer.post_processor = processors.TemplateProcessing(
    single='<s> $A </s>', special_tokens=[('<s>', 0), ('</s>', 1)]
  )
  tokenizer.add_special_tokens(['<s>', '</s>', '<mask>'])
  tokenizer.save(str(tmp_path / 'tokenizer.json'))
  loaded = Published(str(tmp_path)).train(())
  assert (loaded.before, loaded.bos_id, loaded.eos_id, loaded.mask, loaded.vocab_size) == ((0,), 0, 1, 2, 6)
  # What a target is continued from is not repeated; where it is another, as in BART, a target begins with
  # it.
  assert loaded.target_prompt_ids('a').tolist() == [0, 4] and loaded.source_ids('a').tolist() == [0, 4, 1]
  config(tmp_path, decoder_start_token_id=1)
  assert Published(str(tmp_path)).train(()).target_prompt_ids('a').tolist() == [1, 0, 4]
  assert loaded.encode('A <mask> b').tolist() == [4, 2, 5]


def test_streamed_text_is_the_whole_text(tmp_path):
  (tmp_path / 'vocab.txt').write_text('\n'.join(['[UNK]', '[CLS]', '[SEP]', 'now', 'bet', '##ter']))
  config(tmp_path)
  tokenizer = Published(str(tmp_path)).train(())
  ids = np.array([3, 4, 5, 3])
  assert (
    ''.join(stream_text(tokenizer, [ids[:2].tolist(), ids[2:3].tolist(), ids[3:].tolist()]))
    == 'now better now'
  )


def test_invalid_folders_are_rejected(tmp_path):
  with pytest.raises(
    ValueError, match='has no tokenizer; it needs tokenizer.json, spiece.model or tokenizer.model, vocab.txt'
  ):
    Published(str(tmp_path)).train(())
  with pytest.raises(ValueError, match='is not trained'):
    Published(str(tmp_path)).encode('a')
  byte_level(tmp_path)
  with pytest.raises(
    ValueError, match='does not define the end of a text; set eos_token_id in its config.json'
  ):
    Published(str(tmp_path)).train(())


def test_truncation_and_padding_of_the_tokenizer_are_disabled(tmp_path):
  """tokenizer.json may define truncation and padding for its original model."""
  theirs = byte_level(tmp_path)
  whole = theirs.encode(TEXT).ids
  theirs.enable_truncation(max_length=4)
  theirs.enable_padding(length=8)
  theirs.save(str(tmp_path / 'tokenizer.json'))
  config(tmp_path, eos_token_id=0)
  tokenizer = Published(str(tmp_path)).train(())
  assert tokenizer.encode(TEXT).tolist() == whole and tokenizer.before == ()
