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
from tfm.decoding.text import stream_text


TEXT = 'Now is better than never. Wörter, two  spaces and\na line.'


def byte_level(folder, special=('</s>',)):
  made = Tokenizer(models.BPE())
  made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
  made.train_from_iterator(
    [TEXT] * 20,
    trainers.BpeTrainer(
      vocab_size=300, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    ),
  )
  made.save(str(folder / 'tokenizer.json'))
  return made


def config(folder, **fields):
  (folder / 'config.json').write_text(json.dumps(fields))


def test_byte_pairs_lose_nothing(tmp_path):
  theirs = byte_level(tmp_path)
  config(tmp_path, vocab_size=304, eos_token_id=0)
  made = Published(str(tmp_path)).train(())
  ids = made.encode(TEXT)
  assert made.is_lossless and made.vocab_size == 304 and made.eos_id == made.bos_id == 0
  assert ids.tolist() == theirs.encode(TEXT).ids and made.decode(ids) == TEXT
  assert b''.join(made.pieces[i] for i in ids) == TEXT.encode() and made.pieces[0] == b''
  # The text of a special token is text.
  assert 0 not in made.encode('a </s> b') and made.decode(made.encode('a </s> b')) == 'a </s> b'
  assert load(json.loads(json.dumps(made.state()))).encode(TEXT).tolist() == ids.tolist()


def test_word_pieces_have_a_frame_and_a_mask(tmp_path):
  words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'now', 'is', 'bet', '##ter', '.']
  (tmp_path / 'vocab.txt').write_text('\n'.join(words))
  config(tmp_path, vocab_size=12)
  (tmp_path / 'special_tokens_map.json').write_text(json.dumps(dict(mask_token='[MASK]', sep_token='[SEP]')))
  made = Published(str(tmp_path)).train(())
  assert made.encode('Now is better.').tolist() == [5, 6, 7, 8, 9] and not made.is_lossless
  assert (made.bos_id, made.eos_id, made.before, made.vocab_size) == (2, 3, (2,), 12)
  assert (
    made.encode('now <mask> better').tolist() == [5, 4, 7, 8]
    and made.decode([5, 6, 7, 8, 9]) == 'now is better.'
  )
  # What an objective asks for is there already.
  assert extend_tokenizer(made, ('<mask>',)) is made and special_token_id(made, '<mask>') == 4
  assert isinstance(extend_tokenizer(made, ('<mask>', '<other>')), ExtendedTokenizer)
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps(dict(do_lower_case=False)))
  assert Published(str(tmp_path)).train(()).encode('Now')[0] == 1


@pytest.mark.parametrize('name', ['spiece.model', 'tokenizer.model'])
def test_sentence_pieces(tmp_path, name):
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
  made = Published(str(tmp_path)).train(())
  theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
  assert (
    made.encode('is better').tolist() == theirs.encode('is better')
    and made.decode(made.encode('is better')) == 'is better'
  )
  assert (made.bos_id, made.eos_id, made.vocab_size, made.is_lossless) == (0, 1, 64, False)


def test_its_own_rules_are_read(tmp_path):
  made = Tokenizer(
    models.WordLevel(dict(zip(['<s>', '</s>', '<mask>', '<unk>', 'a', 'b'], range(6))), unk_token='<unk>')
  )
  made.pre_tokenizer, made.normalizer = pre_tokenizers.Whitespace(), normalizers.Lowercase()
  made.post_processor = processors.TemplateProcessing(
    single='<s> $A </s>', special_tokens=[('<s>', 0), ('</s>', 1)]
  )
  made.add_special_tokens(['<s>', '</s>', '<mask>'])
  made.save(str(tmp_path / 'tokenizer.json'))
  found = Published(str(tmp_path)).train(())
  assert (found.before, found.bos_id, found.eos_id, found.mask, found.vocab_size) == ((0,), 0, 1, 2, 6)
  # What a target is continued from is not said twice; where it is another, as in BART, a target begins with
  # it.
  assert found.target_prompt_ids('a').tolist() == [0, 4] and found.source_ids('a').tolist() == [0, 4, 1]
  config(tmp_path, decoder_start_token_id=1)
  assert Published(str(tmp_path)).train(()).target_prompt_ids('a').tolist() == [1, 0, 4]
  assert found.encode('A <mask> b').tolist() == [4, 2, 5]


def test_text_as_it_comes_is_the_whole_text(tmp_path):
  (tmp_path / 'vocab.txt').write_text('\n'.join(['[UNK]', '[CLS]', '[SEP]', 'now', 'bet', '##ter']))
  config(tmp_path)
  made = Published(str(tmp_path)).train(())
  ids = np.array([3, 4, 5, 3])
  assert (
    ''.join(stream_text(made, [ids[:2].tolist(), ids[2:3].tolist(), ids[3:].tolist()])) == 'now better now'
  )


def test_refusals(tmp_path):
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


def test_rows_that_a_tokenizer_would_cut_and_fill_are_not(tmp_path):
  """tokenizer.json may carry what cuts and fills texts for its publisher's model."""
  theirs = byte_level(tmp_path)
  whole = theirs.encode(TEXT).ids
  theirs.enable_truncation(max_length=4)
  theirs.enable_padding(length=8)
  theirs.save(str(tmp_path / 'tokenizer.json'))
  config(tmp_path, eos_token_id=0)
  made = Published(str(tmp_path)).train(())
  assert made.encode(TEXT).tolist() == whole and made.before == ()
