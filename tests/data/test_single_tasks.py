"""What single synthetic tasks promise of their documents."""

import collections
import itertools

import numpy as np
import pytest

from tests.data.test_tasks import corpus, documents
from tfm.data.sources import mqar, regbench


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
