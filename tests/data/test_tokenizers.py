"""Tokenizers: lossless, exact in bytes, always the same, and portable."""

import collections
import json
import random

import numpy as np
import pytest

from tfm import spec
from tfm.data import corpus as corpora
from tfm.data import pipeline, tokenizers
from tfm.data import tokens as token_arrays
from tfm.data.documents import SPLITS
from tfm.data.tokenizers import protocol


SPECS = 'bytes', 'char', 'words', 'sentencepiece(400)', "sentencepiece(400, kind='unigram')"
TRAPS = (
  '',
  ' ',
  '  lead',
  'trail  ',
  '\n',
  '\n\n\t\t x',
  '\r\n',
  '\0',
  'a\0b',
  '\ufeff',
  '▁',
  '▁▁ ▁a',
  'a▁b',
  ' ▁ ',
  '▅',
  '<unk>',
  '</s>',
  '<s>',
  '<0x0A>',
  '⁇',
  '🐈\u200d⬛',
  'e\u0301 é',
  'ﬁ ½ Ａ',
  '\u2028\x85\u00a0\u3000',
  '\u200b\u200d\ufffe\uffff\U0010ffff',
  '\x1b[0m\x7f',
  ''.join(map(chr, range(256))),
  ' ' * 999,
  'a' * 999,
)


def build(text: str) -> protocol.Tokenizer:
  return spec.build(text, tokenizers, protocol.Tokenizer)


@pytest.fixture(scope='module')
def texts(make_text):
  return [make_text(seed, 60) for seed in range(20)]


@pytest.fixture(scope='module', params=SPECS)
def trained(request, texts):
  return build(request.param).train(texts)


def random_texts(count: int) -> list[str]:
  draw = random.Random(0)
  pools = ('ab \n', ' \t\n\r', 'the cat ▁ sat', ''.join(map(chr, range(0x300))), '猫🐈▁é\u0301 ')
  anything = lambda: chr(draw.choice([draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)]))
  return [
    ''.join(
      draw.choice([draw.choice(pools[i % 5]), draw.choice(pools[i % 5]), anything()])
      for _ in range(draw.randrange(60))
    )
    for i in range(count)
  ]


def test_every_text_is_preserved_and_its_bytes_counted(trained, texts):
  for text in [*TRAPS, *random_texts(400), *texts]:
    ids = trained.encode(text)
    assert ids.dtype == np.int32 and ids.ndim == 1
    assert trained.decode(ids) == text
    assert trained.token_bytes[ids].sum() == len(text.encode())
    assert trained.eos_id not in ids
    assert not len(ids) or 0 <= ids.min() <= ids.max() < trained.vocab_size


def test_the_end_of_a_text_decodes_to_nothing(trained):
  ids = trained.encode('one two')
  assert trained.decode([trained.eos_id, *ids[:2], trained.eos_id, *ids[2:]]) == 'one two'
  assert trained.token_bytes[trained.eos_id] == 0
  assert len(trained.token_bytes) == trained.vocab_size


def test_invalid_utf8_is_decoded_with_replacement_characters(trained):
  half = [trained.pieces.index(bytes([byte])) for byte in '€'.encode()[:2]]
  assert trained.decode(half) == '\ufffd'


def test_ids_outside_of_the_vocabulary_are_rejected(trained):
  for wrong in (-1, trained.vocab_size):
    with pytest.raises(ValueError, match=f'token {wrong} .*{trained.vocab_size}'):
      trained.decode([0, wrong])


def test_training_is_deterministic(trained, texts, request):
  untrained = build(request.node.callspec.params['trained'])
  assert untrained.train(iter(texts)).state() == trained.state()


def test_the_state_is_json(trained, texts):
  state = json.loads(json.dumps(trained.state()))
  loaded = protocol.load(state)
  assert loaded == trained and loaded.identity == trained.identity and loaded.is_trained
  np.testing.assert_array_equal(loaded.encode(texts[0]), trained.encode(texts[0]))
  assert loaded.eos_id == trained.eos_id


def test_identities_differ_with_the_vocabulary(texts):
  parts = texts, ['zebra ' * 200, *texts]
  results = {build(text).train(part).identity for text in SPECS[1:] for part in parts}
  assert len(results) == 2 * len(SPECS[1:])
  assert all(set(name) <= set('abcdefghijklmnopqrstuvwxyz0123456789-_') for name in results)


def test_char_is_one_token_for_a_known_character_and_bytes_for_another():
  char = build('char').train(['banana', 'bread é'])
  assert char.alphabet == ' abdenré'
  assert len(char.encode('brea dé')) == 7
  assert len(char.encode('b猫d')) == 1 + 3 + 1
  assert char.vocab_size == 8 + 1 + 256


def test_char_without_bytes_has_its_alphabet_and_the_end_of_a_text_alone():
  char = build('char(byte_fallback=False)').train(['banana', 'bread é'])
  assert char.pieces == (*(c.encode() for c in ' abdenré'), b'') and char.vocab_size == 8 + 1
  assert char.decode(char.encode('dée bar')) == 'dée bar'
  with pytest.raises(ValueError, match="the character '猫' is not among the 8 of the training split; use"):
    char.encode('b猫x')
  assert protocol.load(json.loads(json.dumps(char.state()))) == char


def test_words_are_one_token_with_the_space_before_them_and_bytes_where_unknown():
  words = build('words').train(['. k1 v7', '[MAX 3 ]\n[MIN'])
  assert words.known.split('\n') == [' 3', ' ]', ' k1', ' v7', '.', '[MAX', '[MIN']
  assert [len(words.encode(text)) for text in ('. k1 v7 k1', 'k1', ' k2', '.  k1\n.')] == [4, 2, 3, 5]
  assert words.vocab_size == 7 + 1 + 256


def test_sentencepiece_compresses_and_has_the_given_size(texts):
  tokenizer = build('sentencepiece(400)').train(texts)
  assert tokenizer.vocab_size == 400
  text = ''.join(texts)
  assert len(tokenizer.encode(text)) < 0.5 * len(text.encode())


def test_sentencepiece_learns_from_every_part_of_a_long_document(texts):
  # SentencePiece skips long sentences; a document is not one.
  long = 'x' * 20 + ' ' + ' '.join(texts).replace('\n', ' ') + ' zebra' * 2000
  assert len(build('sentencepiece(400)').train([long]).encode(' zebra')) <= 2


@pytest.mark.parametrize(
  'text, message',
  (
    ('sentencepiece(100)', 'size=100 has no room for the 256 bytes'),
    ('sentencepiece(259)', 'size=259 has no room for the characters.*use at least'),
    ('sentencepiece(30000)', 'size=30000 is more than .*use at most'),
    ("sentencepiece(30000, kind='unigram')", 'size=30000 is more than .*use at most'),
    ("sentencepiece(400, kind='word')", "kind='word'.*bpe, unigram"),
    ('sentencepiece(400, coverage=2)', 'coverage=2'),
    ('sentencepiece(400, sample=0)', 'sample=0'),
  ),
)
def test_errors_name_the_field(text, message, texts):
  with pytest.raises(ValueError, match=message):
    build(text).train(texts)


def test_the_size_in_an_error_is_valid(texts):
  for text, words in (('sentencepiece(30000)', 'at most '), ('sentencepiece(259)', 'at least ')):
    with pytest.raises(ValueError) as error:
      build(text).train(texts)
    size = int(str(error.value).split(words)[1].split(',')[0])
    assert build(f'sentencepiece({size})').train(texts).vocab_size == size


@pytest.mark.parametrize('text', SPECS[1:])
def test_an_untrained_tokenizer_raises(text):
  assert not build(text).is_trained
  with pytest.raises(ValueError, match='is not trained'):
    build(text).encode('a')


def test_a_sample_is_logged(texts, caplog):
  size = len(texts[0]) + len(texts[1])
  sample = build(f'sentencepiece(320, sample={size})')
  assert sample.train(texts[:2]).model != build('sentencepiece(320)').train(texts).model
  assert not caplog.text
  assert sample.train(texts) == sample.train(texts[:2])
  assert f'first {size} characters' in caplog.text


def fake_corpus(texts, name='fake') -> corpora.Corpus:
  splits = {split: {'text': texts} for split in SPLITS}
  size = sum(len(text.encode()) for text in texts)
  return corpora.Corpus(name, f'{name}-hash', splits, {split: size for split in splits})


def test_a_tokenizer_is_trained_once(texts, tmp_path, monkeypatch):
  corpus = fake_corpus(texts)
  first = pipeline.train_tokenizer(build('sentencepiece(300)'), corpus, ('text',), tmp_path)
  monkeypatch.setattr(type(first), 'train', lambda *_: pytest.fail('trained again'))
  assert pipeline.train_tokenizer(build('sentencepiece(300)'), corpus, ('text',), tmp_path) == first
  assert pipeline.train_tokenizer(first, corpus, ('text',), tmp_path) is first  # as from a checkpoint


def test_the_error_of_a_size_that_does_not_fit_names_the_source(texts, tmp_path):
  with pytest.raises(ValueError, match='fake.*size=30000'):
    pipeline.train_tokenizer(build('sentencepiece(30000)'), fake_corpus(texts), ('text',), tmp_path)
  assert not list((tmp_path / 'tokenizers').iterdir())


def test_tokens_are_the_documents(trained, texts, tmp_path):
  documents = ['', *texts, *TRAPS]
  corpus = fake_corpus(documents)
  for _ in range(2):  # written, then read
    tokens = token_arrays.tokenize(corpus, 'train', 'text', trained, tmp_path)
    assert tokens.documents == len(documents) and tokens.bytes == corpus.bytes['train']
    results = [trained.decode(tokens.ids[a:b]) for a, b in zip(tokens.offsets, tokens.offsets[1:])]
    assert collections.Counter(results) == collections.Counter(documents)
    assert trained.token_bytes[tokens.ids].sum() == tokens.bytes


def test_a_tokenizer_that_loses_text_raises(tmp_path):
  class Lossy(type(build('bytes'))):
    def encode(self, text):
      return super().encode(text.replace('é', 'e'))

  with pytest.raises(ValueError, match='of fake train as'):
    token_arrays.tokenize(fake_corpus(['caf', 'é']), 'train', 'text', Lossy(), tmp_path)
  with pytest.raises(ValueError, match="no split 'dev'.*validation"):
    token_arrays.tokenize(fake_corpus(['a']), 'dev', 'text', build('bytes'), tmp_path)


def test_damaged_tokens_are_rejected(tmp_path):
  token_arrays.tokenize(fake_corpus(['abc']), 'train', 'text', build('bytes'), tmp_path)
  [path] = tmp_path.rglob('ids')
  path.write_bytes(path.read_bytes()[:-2])
  with pytest.raises(ValueError, match='damaged'):
    token_arrays.tokenize(fake_corpus(['abc']), 'train', 'text', build('bytes'), tmp_path)
