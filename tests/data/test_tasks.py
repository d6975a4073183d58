"""Synthetic tasks: each answer by an oracle that reads the text alone, splits apart, always the same, and
refusals.
"""

import collections
import itertools
import re

import numpy as np
import pytest

from tfm.data.sources import memorization as memorization_task


COUNT = 150


HAY = 'The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. '


def of_letters(f):
  def oracle(text):
    x, reported = text.split('=')
    return reported == f(x) and re.fullmatch('[a-d]+', x), [reported], True, len(x)

  return oracle


def parity(text):
  bits, reported = text.split('=')
  return int(reported) == sum(map(int, bits)) % 2, [reported], False, len(bits)


def addition(text):
  a, b, reported = re.fullmatch(r'(0|[1-9]\d*)\+(0|[1-9]\d*)=(\d+)', text).groups()
  assert (len(a) > 3) == (len(b) > 3)
  return int(a) + int(b) == int(reported), [reported], True, max(len(a), len(b))


def backwards(text):
  a, b, reported = re.split(r'[+=]', text)
  return int(a) + int(b) == int(reported[::-1]), [reported], True, max(len(a), len(b))


def induction(text):
  before, after, reported = re.fullmatch(r'([a-d]*)\*([a-d]+)\*([a-d])', text).groups()
  return reported == after[0], [reported], False, len(text) - 1


def selective_copy(text):
  rest, reported = re.fullmatch(r'([a-f.]+)=([a-f]{5})', text).groups()
  return reported == rest.replace('.', ''), [reported], False, len(rest)


def needle(text):
  before, number, after, reported = re.fullmatch(
    r'(.*)The pass key is (\d{3})\. Remember it\. (.*)What is the pass key\? The pass key is (\d{3})', text
  ).groups()
  return number == reported and before + after in HAY * 9, [reported], False, len(text)


def recall(text):
  first, *words = text.split(' ')
  assert first == '.'
  pairs = dict(itertools.takewhile(lambda pair: pair[0] in pairs_of(words), zip(words[::2], words[1::2])))
  after = words[2 * len(pairs) :]
  calls = {key: value for key, value in zip(after[::2], after[1::2]) if key != '.'}
  return (
    calls == pairs and {*after} <= {'.', *pairs, *pairs.values()},
    [f' {v}' for k, v in zip(after[::2], after[1::2]) if k != '.'],
    False,
    len(words),
  )


def pairs_of(words):
  """The keys of an alphabet of `k…` and `v…` that stand twice."""
  return {word for word, count in collections.Counter(words).items() if word[0] == 'k' and count == 2}


def joined(text):
  """The same text with pairs as one symbol."""
  right, answers, end, length = recall(re.sub(r' (k\d+)=(v\d+)', r' \1 \2', text))
  return right, answers, end, length - text.count('=')


def in_context_recall(text):
  """Every key has one value, noise apart; what is known is answered, and the last key is."""
  first, *words = text.split(' ')
  known, answers, right = {}, [], first == '.'
  for key, value in zip(words[::2], words[1::2], strict=True):
    if key[0] == 'n':
      right &= value[0] == 'n'
      continue
    right &= key[0] == 'k' and value[0] == 'v' and known.get(key, value) == value
    if key in known:
      answers.append(f' {value}')
    known[key] = value
  return right and words[-2] in words[:-2:2], answers, False, len(words)


def fuzzy_recall(text):
  """The same, of runs of symbols."""
  known, answers, right = {}, [], text.startswith('. ')
  pairs = re.findall(r'((?: k\d+)+)((?: v\d+)+)', text)
  for key, value in pairs:
    right &= known.get(key, value) == value and len(set(key.split())) == key.count('k') <= 2
    if key in known:
      answers += re.findall(r' v\d+', value)
    known[key] = value
  last = len({key for key, _ in pairs[:-1]} & {pairs[-1][0]})
  return right and last and text == '.' + ''.join(map(''.join, pairs)), answers, False, text.count(' ')


def memorization(text):
  first, *words = text.split(' ')
  facts = dict(
    zip(
      (f'k{i + 1}' for i in range(5)),
      (f'v{v + 1}' for v in memorization_task.Memorization(vocabulary=10).values),
    )
  )
  right = all(facts[key] == value for key, value in zip(words[::2], words[1::2], strict=True))
  return (
    first == '.' and right and len({*facts.values()}) == 5,
    [f' {word}' for word in words[1::2]],
    False,
    len(words),
  )


def compression(text):
  first, *words, last = text.split(' ')
  return (
    (first, last) == ('.', '=') and {*words} <= {'t1', 't2', 't3', 't4', 't5'},
    [f' {word}' for word in words],
    False,
    len(words),
  )


TASKS = {
  'copy(4, 7, 4)': (of_letters(lambda x: x), range(1, 5), range(5, 8)),
  'reverse(4, 7, 4)': (of_letters(lambda x: ''.join(reversed(x))), range(1, 5), range(5, 8)),
  'sort(4, 7, 4)': (of_letters(lambda x: ''.join(c * x.count(c) for c in 'abcd')), range(1, 5), range(5, 8)),
  'parity(8, 12)': (parity, range(1, 9), range(9, 13)),
  'addition(3, 5)': (addition, range(1, 4), range(4, 6)),
  'addition(2, 3, reversed=True)': (backwards, range(1, 3), range(3, 4)),
  'induction(8, 12, symbols=4)': (induction, [8], [12]),
  'selective_copy(12, 20, tokens=5, symbols=7)': (selective_copy, [12], [20]),
  'needle(300, 400, digits=3)': (needle, range(280, 301), range(380, 401)),
  'mqar(12, 24, pairs=2, more=4, vocabulary=16)': (recall, [12], [24]),
  'mqar(12, 24, pairs=2, more=4, vocabulary=16, joined=True)': (joined, [12], [24]),
  'in_context_recall(16, 24, vocabulary=8)': (in_context_recall, [16], [24]),
  'in_context_recall(16, 24, vocabulary=8, noise=0.5, noise_vocabulary=4)': (in_context_recall, [16], [24]),
  'fuzzy_recall(20, 30, vocabulary=8, key_symbols=2, value_symbols=2)': (
    fuzzy_recall,
    range(15, 21),
    range(26, 31),
  ),
  'memorization(12, 20, vocabulary=10)': (memorization, [12], [20]),
  'compression(12, 20, vocabulary=5)': (compression, [12], [20]),
}


def corpus(make_source, text, path, count=COUNT):
  head, _, rest = text.partition('(')
  stated = ', '.join(filter(None, [rest.removesuffix(')'), f'held_out={count}']))
  return make_source(f'{head}({stated})').prepare(path)


def documents(corpus, split, count=COUNT):
  return [tuple(corpus.splits[split][field][i] for field in corpus.fields) for i in range(count)]


@pytest.mark.parametrize('text', TASKS)
def test_answers_lengths_and_splits(make_source, tmp_path, text):
  oracle, short, long = TASKS[text]
  generated, observed = corpus(make_source, text, tmp_path), {}
  for split, allowed in (('train', short), ('validation', short), ('test', long)):
    results = documents(generated, split)
    lengths = set()
    for written, spans in results:
      right, answers, end, length = oracle(written)
      assert right, written
      bounds = [tuple(map(int, span.split(':'))) for span in spans.split()]
      assert [written[a:b] for a, b in bounds] == answers
      assert bounds[-1][1] == len(written) + 1 if end else bounds[-1][1] <= len(written)
      lengths.add(length)
    # Texts of one letter are few, and may all be training's.
    assert lengths <= {*allowed} and (split == 'validation' or 'needle' in text or lengths == {*allowed}), (
      lengths
    )
    observed[split] = {written for written, _ in results}
  assert not (
    observed['train'] & observed['validation']
    or observed['train'] & observed['test']
    or observed['validation'] & observed['test']
  )


def test_a_test_like_training_is_apart_too(make_source, tmp_path):
  """510 texts are possible; training, which is long enough to have all, has none of the other splits'."""
  generated = corpus(make_source, 'parity(8, None)', tmp_path, 400)
  train, validation, test = (
    {text for text, _ in documents(generated, split, count)}
    for split, count in (('train', 6000), ('validation', 400), ('test', 400))
  )
  assert len(train) > 300 and len(validation) > 30 and len(test) > 30
  assert not (train & validation or train & test or validation & test)
  # What belongs where does not reveal the answer.
  assert all(0.3 < np.mean([text[-1] == '1' for text in texts]) < 0.7 for texts in (train, validation, test))


@pytest.mark.parametrize('text', ['copy', 'mqar(pairs=2, length=16)', 'listops(least=20, most=40, depth=4)'])
def test_a_document_depends_on_seed_split_and_number_alone(make_source, tmp_path, text):
  generated, again = (corpus(make_source, text, tmp_path, 5) for _ in range(2))
  other = corpus(make_source, text[:-1] + ', seed=1)' if ')' in text else f'{text}(seed=1)', tmp_path, 5)
  first = documents(generated, 'train', 5)
  backwards = [tuple(again.splits['train'][field][i] for field in again.fields) for i in (4, 3, 2, 1, 0)]
  assert first == backwards[::-1] and generated.hash == again.hash != other.hash
  assert (
    documents(other, 'train', 5) != first
    and len({*documents(generated, 'train', 5), *documents(generated, 'validation', 5)}) > 5
  )
  assert generated.documents['train'] > 10**15


def test_training_may_have_an_end(make_source, tmp_path):
  generated = corpus(make_source, 'copy(examples=30)', tmp_path, 5)
  assert dict(generated.documents) == dict(train=30, validation=5, test=5)


@pytest.mark.parametrize(
  'text, sentence',
  [
    ('copy(length=0)', 'length=0 must be at least 1'),
    ('copy(length=5, longer=5)', 'longer=5 must be greater than length=5, or None'),
    ('copy(symbols=1)', r'symbols=1 must lie in 2 … 52'),
    ('copy(held_out=0)', 'held_out=0 must be at least 1'),
    ('copy(examples=0)', 'examples=0 must be at least 1'),
    ('induction(length=2)', 'length=2 has no room for a symbol twice'),
    ('induction(symbols=60)', 'symbols=60 must lie in 2 … 52'),
    ('in_context_recall(length=15)', 'length=15 must be even and at least 4'),
    ('in_context_recall(vocabulary=3)', 'vocabulary=3 must be at least 4'),
    ('fuzzy_recall(length=11)', 'length=11 has no room for the longest pair twice; use at least 12'),
    ('fuzzy_recall(key_symbols=9)', r'key_symbols=9 must lie in 1 … 8, half of the vocabulary'),
    ('memorization(longer=33)', 'longer=33 must be even and at least 2'),
    ('selective_copy(length=5, tokens=6)', r'tokens=6 must lie in 1 … length=5'),
    ('selective_copy(symbols=2)', 'symbols=2 must lie in 3 … 53'),
    ('needle(length=150)', 'length=150 has no room for a text around the number; use at least 169'),
    ('needle(depth=1.5)', 'depth=1.5 must be at least 0 and at most 1'),
    ('needle(digits=0)', 'digits=0 must be at least 1'),
    ('regbench(states=3)', 'states=3 must be at least 4'),
    ('mqar(length=15, pairs=2)', 'length=15 must leave an even number of symbols after 2 pairs'),
    (
      'mqar(length=64, pairs=17)',
      'length=64 must leave an even number of symbols after 17 pairs, and room for as many queries, 68',
    ),
    ('mqar(more=17)', 'length=64 must leave an even number of symbols after 17 pairs'),
    ('mqar(longer=65)', 'longer=65 must leave an even number'),
    ('mqar(more=4)', 'more=4 must be greater than pairs=4'),
    ('mqar(pairs=0)', 'pairs=0 must be at least 1'),
    ('mqar(vocabulary=8)', 'vocabulary=8 has 3 keys for 4 pairs; use at least 10'),
    ('twins(pairs=0)', 'pairs=0 must be at least 1'),
    ('twins(pairs=9, keys=8)', 'keys=8 must be at least pairs=9'),
    ('listops(depth=1)', 'depth=1 has only digits'),
    ('listops(arguments=1)', 'arguments=1 must be at least 2'),
    ('listops(least=5)', 'least=5 puts the same short expressions into training and test; use at least 20'),
    ('listops(most=501)', 'most=501 must be at least 502, beyond least=500'),
  ],
)
def test_invalid_fields_are_rejected(make_source, text, sentence):
  with pytest.raises(ValueError, match=sentence):
    make_source(text)


@pytest.mark.parametrize(
  'text, sentence',
  [
    (
      'parity(length=1)',
      r'parity\(.*length=1.*\) has too few different texts for a disjoint validation split',
    ),
    ('listops(depth=2, arguments=3)', r'too few expressions of more than least=500 symbols'),
  ],
)
def test_impossible_tasks_are_rejected(make_source, tmp_path, text, sentence):
  with pytest.raises(ValueError, match=sentence):
    make_source(text).prepare(tmp_path)
