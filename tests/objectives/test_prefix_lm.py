"""Prefix LM: the length of the prefix of every document, and which tokens are targets."""

import jax
import numpy as np

from tfm.objectives.prefix_lm import PrefixLM


OBJECTIVE = PrefixLM(chunk=0, layout='packed', recurrence=0)
# Documents of 5, 3 and 1 tokens, and padding; one of 10 tokens.
SEGMENTS = np.array([[1] * 5 + [2] * 3 + [3] + [0], [1] * 10])
POSITIONS = np.array([[*range(5), *range(3), 0, 0], range(10)])
BATCH = dict(segments=SEGMENTS, positions=POSITIONS)


def check_weights(prefix, weights):
  """Every token whose target is after the prefix counts: the last of the prefix, and those after it."""
  expected = (SEGMENTS > 0) & (POSITIONS + 1 >= np.asarray(prefix))
  np.testing.assert_array_equal(weights, expected.astype(np.float32))


def test_half_of_each_document_is_the_prefix_in_evaluation():
  prefix, weights = OBJECTIVE.prefix_and_weights(BATCH, None)
  np.testing.assert_array_equal(prefix[0, :9], [2] * 5 + [1] * 3 + [0])
  np.testing.assert_array_equal(prefix[1], [5] * 10)
  check_weights(prefix, weights)


def test_the_length_is_uniformly_random_in_training():
  draw = jax.jit(jax.vmap(lambda key: OBJECTIVE.prefix_and_weights(BATCH, key)))
  prefixes, weights = draw(jax.random.split(jax.random.key(0), 3000))
  check_weights(prefixes[0], weights[0])
  for row, place, size in ((0, 0, 5), (0, 5, 3), (0, 8, 1), (1, 0, 10)):
    document = np.asarray(prefixes)[:, row, SEGMENTS[row] == SEGMENTS[row, place]]
    assert (document == document[:, :1]).all()
    share = np.bincount(document[:, 0], minlength=size) / len(document)
    assert len(share) == size and abs(share - 1 / size).max() < 5 * np.sqrt(1 / size / len(document))
  # Of each document by itself: of one random number, ⌊5 u⌋ would be ⌊10 u⌋ // 2.
  halves = np.asarray(prefixes)[:, 1, 0] // 2
  assert not np.array_equal(prefixes[:, 0, 0], halves)


def test_a_row_may_hold_as_many_documents_as_tokens():
  batch = dict(segments=np.arange(1, 9)[None], positions=np.zeros((1, 8), int))
  for key in (None, jax.random.key(0)):
    prefix, weights = OBJECTIVE.prefix_and_weights(batch, key)
    assert prefix.tolist() == [[0] * 8] and weights.tolist() == [[1] * 8]


def test_the_prefix_of_a_batch_depends_on_its_key():
  a, b, again = (OBJECTIVE.prefix_and_weights(BATCH, jax.random.key(i))[0] for i in (0, 1, 0))
  assert np.array_equal(a, again) and not np.array_equal(a, b)


def test_masks_receive_the_prefix():
  assert OBJECTIVE.mask_fields == {'prefix'} and not OBJECTIVE.supports_recurrence


def test_bytes_that_no_loss_has_are_not_counted():
  assert OBJECTIVE.summarize(dict(loss=4.0, tokens=2.0), 8).keys() == {'loss', 'perplexity', 'tokens'}
