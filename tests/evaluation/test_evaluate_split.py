"""The total of a mixture: each source counts by its weight, however many tokens it has."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tfm.evaluation.evaluate_split import Total, mix_totals
from tfm.objectives.causal_lm import CausalLM


OBJECTIVE = CausalLM(chunk=0, layout='contiguous', recurrence=0)
SOURCES = st.lists(
  st.tuples(
    st.integers(1, 50), st.integers(1, 10**6), st.floats(0.1, 20), st.floats(0, 1), st.floats(0.2, 9)
  ),
  min_size=1,
  max_size=5,
)


@given(SOURCES)
def test_metrics_are_means_by_weight(sources):
  counts, tokens, losses, accuracies, bytes_per_token = map(np.array, zip(*sources))
  weights = {i: Fraction(int(count), int(counts.sum())) for i, count in enumerate(counts)}
  totals = {
    i: Total(dict(loss=np.float64(n * loss), accuracy=np.float64(n * right), tokens=np.float64(n)), n * size)
    for i, (_, n, loss, right, size) in enumerate(sources)
  }
  mixed = mix_totals(totals, weights)
  found, w = OBJECTIVE.summarize(mixed.sums, mixed.bytes), counts / counts.sum()
  np.testing.assert_allclose(found['loss'], w @ losses, rtol=1e-9)
  np.testing.assert_allclose(found['accuracy'], w @ accuracies, rtol=1e-9)
  np.testing.assert_allclose(found['perplexity'], math.exp(w @ losses), rtol=1e-7)
  np.testing.assert_allclose(
    found['bits_per_byte'], w @ losses / math.log(2) / (w @ bytes_per_token), rtol=1e-9
  )
  assert found['tokens'] == tokens.sum()


def test_one_source_is_as_it_is():
  sums = dict(loss=np.float64(0.1) * 3, tokens=np.float64(7), table=np.arange(4.0).reshape(2, 2) / 3)
  mixed = mix_totals({'': Total(sums, 11)}, {'': Fraction(1)})
  assert mixed.bytes == 11 and all(np.array_equal(mixed.sums[name], sums[name]) for name in sums)
