"""Masks are filled with the most likely tokens whatever other texts are in the batch."""

import jax
import numpy as np
import pytest

from tests.models import test_encoder
from tests.models.pairs import context
from tfm.decoding.fill_mask import fill_masks


MASK = test_encoder.VOCAB - 1
ROWS = [np.array(row) for row in ([0, 5, MASK, 7, 0], [0, MASK, MASK, 0], [0, 1, 2, 3, 4, 5, MASK, 0])]


def test_masks_are_filled_with_the_most_likely_tokens():
  model, params = test_encoder.make_encoder()
  results = list(fill_masks(model, params, ROWS, MASK, best=3, batch=2))
  for row, versions in zip(ROWS, results):
    mask = np.ones((1, len(row)))
    logits = test_encoder.answers(model, params, row[None], context(mask), None)['vocabulary'][0]
    log_p = np.asarray(jax.nn.log_softmax(logits))[row == MASK][:, :MASK]
    order = np.argsort(-log_p, axis=1)
    for rank, (tokens, score) in enumerate(versions):
      np.testing.assert_array_equal(tokens[row != MASK], row[row != MASK])
      np.testing.assert_array_equal(tokens[row == MASK], order[:, rank])
      np.testing.assert_allclose(score, np.take_along_axis(log_p, order[:, [rank]], 1).sum(), rtol=1e-4)
  # A text alone is filled as in a batch.
  alone = next(fill_masks(model, params, ROWS[2:], MASK, best=3))
  assert [a.tokens.tolist() for a in alone] == [a.tokens.tolist() for a in results[2]]


@pytest.mark.parametrize(
  'rows, best, message',
  [
    ([np.array([1, 2])], 1, 'text 1 has no mask; write <mask>'),
    ([np.array([1] * 8 + [MASK])], 1, 'text 1 has 9 tokens and Learned has 8 positions'),
    (ROWS, MASK + 1, f'best={MASK + 1} must lie in 1 … {MASK}'),
  ],
)
def test_invalid_arguments_are_rejected(rows, best, message):
  with pytest.raises(ValueError, match=message):
    fill_masks(*test_encoder.make_encoder(), rows, MASK, best)
