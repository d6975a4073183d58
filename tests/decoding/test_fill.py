"""What stands for hidden tokens: the likeliest by the model's own logits, whatever stands beside a text."""

import jax
import numpy as np
import pytest

from tests.models import test_encoder
from tests.models.pairs import context
from tfm.decoding.fill import fill


MASK = test_encoder.VOCAB - 1
ROWS = [np.array(row) for row in ([0, 5, MASK, 7, 0], [0, MASK, MASK, 0], [0, 1, 2, 3, 4, 5, MASK, 0])]


def test_the_likeliest():
  model, params = test_encoder.made()
  found = list(fill(model, params, ROWS, MASK, best=3, batch=2))
  for row, made in zip(ROWS, found):
    here = np.ones((1, len(row)))
    logits = test_encoder.answers(model, params, row[None], context(here), None)['vocabulary'][0]
    log_p = np.asarray(jax.nn.log_softmax(logits))[row == MASK][:, :MASK]
    order = np.argsort(-log_p, axis=1)
    for rank, (tokens, score) in enumerate(made):
      np.testing.assert_array_equal(tokens[row != MASK], row[row != MASK])
      np.testing.assert_array_equal(tokens[row == MASK], order[:, rank])
      np.testing.assert_allclose(score, np.take_along_axis(log_p, order[:, [rank]], 1).sum(), rtol=1e-4)
  # By itself a text is filled as among others.
  alone = next(fill(model, params, ROWS[2:], MASK, best=3))
  assert [a.tokens.tolist() for a in alone] == [a.tokens.tolist() for a in found[2]]


@pytest.mark.parametrize(
  'rows, best, sentence',
  [
    ([np.array([1, 2])], 1, 'text 1 hides no token; write <mask>'),
    ([np.array([1] * 8 + [MASK])], 1, 'text 1 has 9 tokens and Learned has 8 positions'),
    (ROWS, MASK + 1, f'{MASK + 1} tokens for each place are asked for, and there are {MASK}'),
  ],
)
def test_refusals(rows, best, sentence):
  with pytest.raises(ValueError, match=sentence):
    fill(*test_encoder.made(), rows, MASK, best)
