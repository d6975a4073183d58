"""Synthetic tasks: each answer by an oracle that reads the text alone, splits apart, always the same, and
refusals.
"""

import collections
import itertools
import re

import numpy as np
import pytest

from tfm import spec
from tfm.data import corpus as corpora
from tfm.data import packing, pipeline, tokenizers
from tfm.data.documents import INFINITE
from tfm.data.packing.protocol import Packing
from tfm.data.sources import memorization as memorization_task
from tfm.data.sources import mqar, regbench
from tfm.data.tokenizers.protocol import Tokenizer
from tfm.data.tokens import AnsweredTexts


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


def test_strings_of_regbench_are_those_of_their_automata(make_source, tmp_path):
  """Walked edge by edge; every number between its bounds occurs, and no automaton twice."""
  task = regbench.Regbench(states=6, symbols=5, edges=3, strings=4, length=3)
  generated = corpus(
    make_source, 'regbench(states=6, symbols=5, edges=3, strings=4, length=3)', tmp_path, 200
  )
  sizes, automata = collections.defaultdict(set), set()
  for index, (text, spans) in enumerate(documents(generated, 'validation', 200)):
    automaton, strings = task.document('validation', index)
    assert text == ' '.join(' '.join(['|', *string]) for string in strings)
    assert [text[slice(*map(int, span.split(':')))] for span in spans.split()] == [
      f' {symbol}' for string in strings for symbol in string
    ]
    for string in strings:
      state = 0
      for symbol in string:
        state = automaton[state][symbol]
    sizes['states'].add(len(automaton))
    sizes['edges'] |= {len(edges) for edges in automaton}
    sizes['alphabet'].add(len({symbol for edges in automaton for symbol in edges}))
    sizes['strings'].add(len(strings))
    sizes['length'] |= {*map(len, strings)}
    automata.add(str(automaton))
  assert len(automata) == 200
  assert sizes.pop('alphabet') <= {*range(1, 6)}
  assert sizes == dict(states={4, 5, 6}, edges={1, 2, 3}, strings={2, 3, 4}, length={1, 2, 3})


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


@pytest.mark.parametrize('power', [0.01, 1.0])
def test_query_distances_have_a_power_law(power):
  """With one pair, its place has exactly this probability; counts are within four standard deviations."""
  task, count = mqar.Mqar(length=18, pairs=1, power=power), 4000
  texts = [task._document('train', i)[0].split(' ')[3:] for i in range(count)]
  places = np.bincount(
    [next(i for i, word in enumerate(text) if word != '.') // 2 for text in texts], minlength=8
  )
  law = np.arange(1, 9) ** (power - 1.0)
  expected = count * law / law.sum()
  assert (abs(places - expected) < 4 * np.sqrt(expected)).all(), (places, expected)


def test_queries_of_many_pairs_are_sampled_without_replacement():
  """Of two queries, the second has the same law on the remaining places."""
  task, count = mqar.Mqar(length=10, pairs=2, power=0.01), 4000
  law = np.arange(1, 4) ** -0.99
  law /= law.sum()
  expected = {(a, b): law[a] * law[b] / (1 - law[a]) for a, b in itertools.permutations(range(3), 2)}
  results = collections.Counter()
  for i in range(count):
    _, *words = task._document('train', i)[0].split(' ')
    results[tuple(words[4:].index(key) // 2 for key in (words[0], words[2]))] += 1
  for places, share in expected.items():
    assert abs(results[places] - count * share) < 4 * np.sqrt(count * share), (places, results)


def test_keys_and_values_are_distinct_and_from_one_half_of_the_vocabulary_each(make_source, tmp_path):
  generated = corpus(make_source, 'mqar(length=64, pairs=16, vocabulary=64, noise=True)', tmp_path, 1)
  words = [text.split(' ')[1:] for text, _ in documents(generated, 'train', 60)]
  assert all(len({*row[:32]}) == 32 for row in words)
  assert {word for row in words for word in row[:32:2]} == {f'k{i}' for i in range(1, 32)}
  assert {word for row in words for word in row[1:32:2]} == {f'v{i}' for i in range(1, 33)}
  # Noise is anything; the answers are where the keys of the text are queried.
  noise = collections.Counter(word for row in words for word in row[32:])
  assert len(noise) == 63 + ('.' in noise) and noise.total() == 32 * 60


def test_the_needle_is_at_its_depth(make_source, tmp_path):
  for depth in (0.0, 0.5, 1.0):
    for text, _ in documents(
      corpus(make_source, f'needle(length=600, longer=None, depth={depth})', tmp_path, 1), 'train', 20
    ):
      before, after = text.split('The pass key is ')[:2]
      n, m = before.count('.'), after.count('.') - 2
      assert n == round(depth * (n + m)) and n + m > 20
  anywhere = {
    text.index('pass key') // 60
    for text, _ in documents(corpus(make_source, 'needle(600, None)', tmp_path, 1), 'train', 200)
  }
  assert len(anywhere) >= 7


def value(symbols):
  """Returns the value of an expression, using a stack."""
  stack = [[]]
  for symbol in symbols:
    if symbol[0] == '[':
      stack.append([symbol])
    elif symbol == ']':
      name, *values = stack.pop()
      assert 2 <= len(values) <= 10
      stack[-1].append(
        {
          '[MIN': np.min,
          '[MAX': np.max,
          '[SM': lambda x: np.sum(x) % 10,
          '[MED': lambda x: int(np.median(x)),
        }[name](values)
      )
    else:
      stack[-1].append(int(symbol))
    assert len(stack) <= 10  # operations within each other: the tenth level is digits
  [[results]] = stack
  return results


def test_listops_are_those_of_the_arena(make_source, tmp_path):
  generated = corpus(make_source, 'listops', tmp_path, 25)
  results = [example for split in generated.splits for example in documents(generated, split, 25)]
  operators, deepest = collections.Counter(), 0
  for text, label in results:
    symbols = text.split(' ')
    assert 500 < len(symbols) < 2000 and symbols[0][0] == '['
    assert label == str(value(symbols))
    operators.update(symbol for symbol in symbols if symbol[0] == '[')
    deepest = max(deepest, max(itertools.accumulate((s[0] == '[') - (s == ']') for s in symbols)))
  assert deepest == 9
  shares = np.array([*operators.values()]) / operators.total()
  assert {*operators} == {'[MIN', '[MAX', '[MED', '[SM'} and (abs(shares - 0.25) < 0.03).all()
  assert len({text for text, _ in results}) == len(results) and len({label for _, label in results}) > 7
  assert generated.fields == ('text', 'label') and generated.classes == tuple('0123456789')


def test_twins_label_each_other(make_source, tmp_path):
  generated = corpus(make_source, 'twins(pairs=5, keys=9)', tmp_path, 25)
  apart = collections.Counter()
  for text, labels in (example for split in generated.splits for example in documents(generated, split, 25)):
    words = [word.split('=') for word in text.split(' ')]
    keys = [key for key, _ in words]
    assert len(words) == 10 and len({*keys}) == 5 and {*keys} <= {f'k{i}' for i in range(9)}
    for (key, digit), i in zip(words, range(10)):
      [twin] = [j for j in range(10) if j != i and keys[j] == key]
      assert labels.split(' ')[i] == words[twin][1]
      apart[abs(twin - i)] += 1
  assert (
    {*apart} == {*range(1, 10)}
    and generated.fields == ('text', 'labels')
    and generated.classes == tuple('0123456789')
  )


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


def open_task_data(make_source, source, tokenizer, path):
  return pipeline.open_text(make_source(source), spec.build(tokenizer, tokenizers, Tokenizer), path)


@pytest.mark.parametrize('split', ['train', 'validation'])
def test_rows_have_their_answers(make_source, tmp_path, monkeypatch, split):
  monkeypatch.setattr(corpora, 'TOKENIZER_SAMPLE', 200)
  data = open_task_data(
    make_source, 'mqar(length=16, pairs=2, vocabulary=12, held_out=30)', 'words', tmp_path
  )
  pack, tokens = spec.build('answered', packing, Packing), data.tokens(split)
  rows = pack.evaluation_rows(tokens, 20) if split == 'validation' else pack.rows(tokens, 20, seed=0)
  for i in range(20):
    row = rows[i]
    assert row['segments'].sum() == 18  # the first filler, 16 symbols, the end: each symbol is one token
    text = data.tokenizer.decode(row['targets'][:17])
    reported = [data.tokenizer.decode([token]) for token in row['targets'][row['answers'] > 0]]
    right, answers, _, _ = recall(text)
    assert right and reported == answers and row['answers'].dtype == np.int32
    np.testing.assert_array_equal(row['inputs'][1:18], row['targets'][:17])
  [batch] = pipeline.evaluation_batches(pack.evaluation_rows(data.tokens('validation'), 20), 32)
  assert not batch['answers'][30:].any() and batch['answers'][:30].any(1).all()


@pytest.mark.parametrize('tokenizer', ['bytes', 'char', 'words', 'sentencepiece(300)'])
def test_answers_are_all_tokens_with_a_byte_of_them(tokenizer):
  text = 'née Ünal said forty two, née'
  trained = spec.build(tokenizer, tokenizers, Tokenizer).train([text * 9, 'said forty two, né'])
  ids = np.append(trained.encode(text), trained.eos_id)
  raw, place = text.encode(), 0
  first, last = (
    raw.index('Ünal'.encode()) + 1,
    raw.index(b'y two'),
  )  # begins within a character and ends within a word
  for spans, expected in (
    (f'{first}:{last}', {*range(first, last)}),
    (f'0:2 {len(raw) - 1}:{len(raw) + 1}', {0, 1, len(raw) - 1, len(raw)}),
  ):
    reported = AnsweredTexts('made up', None, [spans], trained.token_bytes).answer_mask(0, ids)
    place = 0
    for token, counted in zip(ids, reported):
      size = max(len(trained.pieces[token]), 1)
      assert counted == bool({*range(place, place + size)} & expected), (trained.pieces[token], spans)
      place += size
  with pytest.raises(
    ValueError,
    match=rf'made up\[0\] has an answer at 3:{len(raw) + 2}, but the text has {len(raw) + 1} bytes',
  ):
    AnsweredTexts('made up', None, [f'3:{len(raw) + 2}'], trained.token_bytes).answer_mask(0, ids)


def test_long_texts_have_no_answers(make_source, tmp_path, caplog):
  data = open_task_data(make_source, 'copy(4, None, held_out=40)', 'bytes', tmp_path)
  pack = spec.build('answered', packing, Packing)
  rows = [pack.rows(data.tokens('train'), 8, seed=0)[i] for i in range(40)]
  empty = [row for row in rows if not row['segments'].any()]
  assert 0 < len(empty) < 40 and not any(row['answers'].any() for row in empty)
  assert 'more than a row of 8, and is skipped' in caplog.text
  assert 0 < len(pack.evaluation_rows(data.tokens('test'), 8)) < 40


def test_infinite_labelled_texts_are_packed(make_source, tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(corpora, 'TOKENIZER_SAMPLE', 100)
  data = open_task_data(make_source, 'listops(depth=4, least=20, most=40, held_out=20)', 'words', tmp_path)
  each, train = spec.build('each', packing, Packing), data.tokens('train')
  rows = each.rows(train, 40, seed=0)
  assert train.names == tuple('0123456789') and data.tokens('test').names == train.names
  for row in [*(rows[i] for i in range(20)), *each.evaluation_rows(data.tokens('test'), 40)]:
    n = row['segments'].sum()
    symbols = data.tokenizer.decode(row['inputs'][1:n]).split(' ')
    assert len(symbols) == n - 1 and row['inputs'][0] == data.tokenizer.eos_id and not row['inputs'][n:].any()
    assert row['classes'] == value(symbols)
  assert (
    rows[10**15 + 3]['inputs'].tobytes() != rows[3]['inputs'].tobytes() and 'truncated' not in caplog.text
  )
  assert each.rows(train, 20, seed=0)[0]['segments'].all()
  assert 'more than the 19 of a row, and is truncated' in caplog.text
  with pytest.raises(ValueError, match='is infinite; evaluate the validation'):
    each.evaluation_rows(train, 40)


def test_infinite_labels_need_class_names():
  sizes = dict(train=INFINITE, validation=1, test=1)
  for field in ('label', 'labels'):
    with pytest.raises(ValueError, match='made up is infinite, so its labels cannot be collected'):
      corpora.generate_corpus('made up', lambda split, number: ('a', 'a'), sizes, ('text', field))


@pytest.mark.slow
def test_infinite_word_labels(make_source, tmp_path):
  """Labels computed on reading are those of a finite source."""
  pack = spec.build('each', packing, Packing)
  for tokenizer in ('bytes', 'words'):
    endless, ended = (
      open_task_data(make_source, f'twins(pairs=4, keys=9{end})', tokenizer, tmp_path)
      for end in ('', ', examples=30')
    )
    read, stored = (data.tokens('train') for data in (endless, ended))
    for number in range(30):
      np.testing.assert_array_equal(read.labels(number), stored.labels(number))
      labels = endless.corpus.splits['train']['labels'][number].split(' ')
      assert [read.names[i] for i in read.labels(number) if i >= 0] == labels
    row = pack.rows(read, 64, seed=0)[7]
    size = row['segments'].sum()
    words = endless.tokenizer.decode(row['inputs'][1:size]).split(' ')
    first = np.flatnonzero(row['classes'] >= 0)
    assert len(first) == len(words) == 8 and row['classes'].max() < 10
    for word, at in zip(words, first):  # a class stands where its word begins
      assert endless.tokenizer.decode(row['inputs'][at : at + 9]).strip().startswith(word[:2])
