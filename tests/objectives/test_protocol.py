"""What all objectives share: reports of layers, and metrics of a split."""

import jax.numpy as jnp
import numpy as np
import pytest

from tfm.objectives.causal_lm import CausalLM
from tfm.objectives.protocol import add_reports


def test_reports_are_means_over_layers_and_losses_are_added():
  reports = dict(
    metrics={
      'layers': {'block_0': {'load': (jnp.array([1.0, 2.0]),)}, 'block_1': {'load': (jnp.array([3.0]),)}},
      'rest': {'entropy': (jnp.float32(5),)},
    },
    losses={'layers': {'balance': (jnp.array([0.5, 0.25]),)}, 'rest': {'balance': (jnp.float32(1),)}},
  )
  total, sums = add_reports(jnp.float32(7), dict(loss=jnp.float32(7), tokens=jnp.float32(10)), reports)
  assert {name: float(value) for name, value in sums.items()} == dict(
    loss=7, tokens=10, load=20, entropy=50, auxiliary=17.5
  )
  assert total == 7 + 17.5  # as many tokens times the losses: microbatches are averaged by their tokens


def test_without_reports_nothing_is_added():
  sums = dict(loss=jnp.float32(7), tokens=jnp.float32(10))
  assert add_reports(jnp.float32(7), sums, {}) == (7, sums)


@pytest.mark.parametrize('size, bits', [(0, None), (4, 6 / np.log(2) / 4)])
def test_metrics_of_a_split(size, bits):
  objective = CausalLM(chunk=0, layout='packed', recurrence=0)
  values = objective.summarize(dict(loss=np.float64(6), accuracy=2, tokens=3), size)
  expected = dict(loss=2, accuracy=2 / 3, tokens=3, perplexity=np.exp(2))
  assert values == pytest.approx(expected | ({} if bits is None else dict(bits_per_byte=bits)))


def test_metrics_of_nothing_and_of_a_diverged_model_are_numbers():
  objective = CausalLM(chunk=0, layout='packed', recurrence=0)
  assert objective.summarize(dict(loss=0.0, tokens=0), 0) == dict(loss=0, perplexity=1, tokens=0)
  assert np.isfinite(objective.summarize(dict(loss=1e9, tokens=1), 0)['perplexity'])
