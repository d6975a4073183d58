"""The measure `initialization`: how alike tokens are before the first step, and how large gradients."""

import functools

import jax
import numpy as np
import pytest

from tests.studies.measures.test_measures import measure_run
from tfm.runs import load as runs
from tfm.runs.train import train
from tfm.studies.measures import initialization
from tfm.training import metrics


def test_mean_cosine_equals_a_loop_over_pairs():
  x = np.random.default_rng(0).normal(size=(2, 5, 3))
  real = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
  pairs = [
    x[b, i] @ x[b, j] / np.linalg.norm(x[b, i]) / np.linalg.norm(x[b, j])
    for b, n in enumerate((3, 5))
    for i in range(n)
    for j in range(n)
    if i != j
  ]
  assert initialization.mean_cosine(x, real) == pytest.approx(np.mean(pairs), rel=1e-5)


@pytest.mark.slow
def test_initialization_is_where_training_starts(tiny, tmp_path):
  train(tiny(**{'optimizer.learning_rate': 1e-30}), tmp_path)
  run = runs.load(tmp_path)
  jax.tree.map(np.testing.assert_allclose, initialization.init_params(run), run.params)
  found = measure_run('initialization', run)
  assert -0.2 < found['token_cosine_at_start'] < 0.5 and 0.1 < found['gradient_norm_at_start'] < 10


@pytest.mark.slow
@pytest.mark.parametrize('changes', [{}, {'lora.rank': 2}, {'optimizer.frozen': 'mixer'}])
def test_initialization_of_a_run_that_starts_from_another(tiny_run, tiny, tmp_path, changes):
  """It starts where the other ended; of the gradient counts what is trained."""
  train(tiny(**{'init_from': str(tiny_run), 'optimizer.learning_rate': 1e-30}, **changes), tmp_path)
  run = runs.load(tmp_path)
  same = functools.partial(np.testing.assert_allclose, atol=1e-20)
  jax.tree.map(same, initialization.init_params(run), run.params)
  found = measure_run('initialization', run)
  first = metrics.read(tmp_path / 'metrics.jsonl')[0]
  # Of another batch, but of all parameters or of some as in training.
  assert found['gradient_norm_at_start'] == pytest.approx(first['gradient_norm'], rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
  'initializer, depth_scaled, alike', [('xavier_uniform', False, True), ('normal(0.02)', True, False)]
)
def test_deep_post_norm_makes_all_tokens_alike_by_large_weights(
  tiny, tmp_path, initializer, depth_scaled, alike
):
  config = {'model.layers': 12, 'model.norm_placement': 'post', 'model.initializer': initializer}
  train(tiny(**config, **{'model.depth_scaled': depth_scaled, 'training.steps': 1}), tmp_path)
  found = measure_run('initialization', runs.load(tmp_path))
  assert (found['token_cosine_at_start'] > 0.9) == alike
