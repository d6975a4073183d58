"""Loss slices: labels equal a loop over tokens, and the slices add up to the loss of the evaluation."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.data.tokens import Tokens
from tfm.evaluation import loss_slices
from tfm.runs import load as runs
from tfm.runs.slices import evaluate_slices, join_documents
from tfm.runs.train import train


pytestmark = pytest.mark.slow


def loop_over_repeats(inputs, targets, segments, n):
  """Whether each target ends an n-gram that ended before in its row and document."""
  found = np.zeros(inputs.shape, bool)
  for b, row in enumerate(inputs):
    seen = set()
    for t, target in enumerate(targets[b]):
      first = t - n + 2
      if first < 0 or segments[b, t] == 0 or segments[b, first] != segments[b, t]:
        continue
      gram = segments[b, t], *row[first : t + 1], target
      found[b, t] = gram in seen
      seen.add(gram)
  return found


@given(
  st.lists(st.lists(st.integers(1, 2), min_size=9, max_size=9), min_size=1, max_size=3),
  st.integers(2, 4),
  st.data(),
)
def test_repeats_equal_a_loop(rows, n, data):
  tokens = np.array(rows)
  inputs, targets = tokens[:, :-1], tokens[:, 1:]
  # Documents one after another, then padding.
  segments = np.stack([np.sort(data.draw(st.lists(st.integers(1, 3), min_size=8, max_size=8))) for _ in rows])
  segments[:, 8 - data.draw(st.integers(0, 3)) :] = 0
  expected = loop_over_repeats(inputs, targets, segments, n)
  np.testing.assert_array_equal(loss_slices.find_repeats(inputs, targets, segments, n), expected)


@given(st.lists(st.integers(0, 2), min_size=12, max_size=40), st.integers(2, 4), st.integers(0, 3))
def test_ngrams_that_training_has_often_equal_a_loop(tokens, n, most):
  counts = collections.Counter(zip(*(tokens[i:] for i in range(n))))
  grams = list(counts)
  often = loss_slices.frequent_ngrams(np.array(tokens), n, most)
  found = np.isin(loss_slices.hash_ngrams(list(np.array(grams).T)), often)
  assert found.tolist() == [counts[gram] > most for gram in grams]


def test_ar_hits_are_repeats_that_training_has_seldom():
  """Of two repeated pairs that which training has twice, where 1 is allowed, counts as known by heart."""
  slices = loss_slices.Slices(
    2, np.zeros(6, int), loss_slices.frequent_ngrams(np.array([1, 2, 0, 1, 2]), 2, 1)
  )
  row = np.array([[1, 2, 3, 4, 1, 2, 3, 4]])
  batch = dict(
    inputs=row[:, :-1], targets=row[:, 1:], segments=np.ones((1, 7), int), positions=np.arange(7)[None]
  )
  (labelled,) = slices.label([batch])
  of_targets = labelled[loss_slices.LABELS][0]
  names = [*loss_slices.REPEATS, *loss_slices.RECALL]
  assert [names[i] for i in of_targets[:, 0]] == ['new'] * 4 + ['repeated'] * 3
  assert [names[i] for i in of_targets[:, 1]] == ['other'] * 5 + ['ar_hits'] * 2


def test_classes_of_frequency():
  """A type is where the last of its occurrences lies, from the rarest on."""
  counts = np.array([40, 0, 9, 1, 50])
  classes = [loss_slices.FREQUENCIES[i] for i in loss_slices.frequency_classes(counts)]
  assert classes == ['medium', 'rare', 'rare', 'rare', 'frequent']


def test_positions_are_in_groups_of_four_times_the_one_before():
  groups = loss_slices.position_groups(np.arange(65))
  assert np.bincount(groups).tolist() == [1, 3, 12, 48, 1]
  assert loss_slices.count_slices(65) == 2 + 2 + 3 + 5


@pytest.fixture(scope='module')
def run(tiny, tmp_path_factory):
  folder = tmp_path_factory.mktemp('sliced')
  train(tiny(**{'data.packing': 'first_fit', 'training.evaluation_batches': 0}), folder)
  return runs.load(folder)


def test_slices_add_up_to_the_loss(run):
  whole = runs.evaluate(run, 'validation').metrics
  kinds = collections.defaultdict(list)
  for part in evaluate_slices(run, 'validation', 2, max_count=1000):
    kind = next((i for i, names in enumerate(loss_slices.NAMES) if part.name in names), 3)
    kinds[kind].append(part)
  assert len(kinds) == 4
  for parts in kinds.values():
    assert sum(part.tokens for part in parts) == whole['tokens']
    mean = sum(part.tokens * (part.loss or 0) for part in parts) / whole['tokens']
    assert mean == pytest.approx(whole['loss'], rel=1e-5)
  losses = {part.name: part.loss for part in kinds[2]}
  assert losses['frequent'] < losses['rare']  # after a few steps it knows how often each byte occurs
  tokens = {part.name: part.tokens for parts in kinds.values() for part in parts}
  assert 0 < tokens['ar_hits'] < tokens['repeated'] < tokens['other']


def test_the_end_of_a_document_is_counted():
  tokens = Tokens('train', np.array([5, 6, 7, 8]), np.array([0, 3, 4]), 1, bytes=0, prefix=(2,))
  assert join_documents(tokens, 10).tolist() == [5, 6, 7, 1, 2, 8, 1, 2]
  assert join_documents(tokens, 3).tolist() == [5, 6, 7, 1, 2]
  assert join_documents(tokens, 2).tolist() == [5, 6]


def test_what_cannot_be_sliced_is_rejected(run):
  with pytest.raises(ValueError, match='n-grams of 1 tokens: .* use 2 or more'):
    evaluate_slices(run, 'validation', 1)
