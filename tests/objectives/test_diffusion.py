"""The diffusion objective: its loss by hand, its randomness, and what it refuses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_diffusion import build_diffusion, config
from tfm.config.assemble import Experiment
from tfm.data import pipeline
from tfm.objectives._variational_bound import variational_bound
from tfm.objectives.diffusion import Diffusion


pytestmark = pytest.mark.slow
SEEDS = np.array([3, 11, 4, 8], np.int32)
CLASSES = np.array([2, 9, 0, -1], np.int32)  # the last one is padding
BATCH = dict(
  image=np.random.default_rng(0).standard_normal((4, 8, 8, 1)).astype(np.float32),
  classes=CLASSES,
  noise_seed=SEEDS,
  positions=np.broadcast_to(np.arange(16, dtype=np.int32), (4, 16)),
  segments=np.ones((4, 16), np.int32),
)


def objective(**fields):
  return Diffusion(0, 'contiguous', 0, classes=10, shape=(8, 8, 1), **fields)


@functools.cache
def jitted(aim):
  model, params = build_diffusion()
  return jax.jit(lambda batch, key: aim(model, params, batch, key))


def loss(aim, batch=BATCH, key=None):
  return jitted(aim)(batch, key)


@pytest.mark.parametrize(
  'schedule, prediction', [('linear', 'epsilon'), ('cosine', 'v'), ('straight("logit_normal")', 'flow')]
)
def test_the_loss_by_hand(schedule, prediction):
  """The model is called on each image alone, at a point that the formulas of the papers give."""
  aim, (model, params) = objective(schedule=schedule, prediction=prediction), build_diffusion()
  total, sums = loss(aim)
  apply = jax.jit(lambda params, *inputs: model.apply({'params': params}, *model.arguments(*inputs))[0])
  by_hand = []
  for image, label, seed in zip(BATCH['image'][:3], CLASSES, SEEDS):
    noise, t, _ = aim.draw((8, 8, 1), seed)
    if schedule.startswith('straight'):
      a, s, time = 1 - t, t, 1000 * t
    else:
      kept = aim.path.alpha_bars[int(t)]
      a, s, time = np.sqrt(kept), np.sqrt(1 - kept), float(t)
    target = {'epsilon': noise, 'v': a * noise - s * image, 'flow': noise - image}[prediction]
    predicted = apply(params, (a * image + s * noise)[None], jnp.full(1, time), jnp.array([label]))
    by_hand.append(np.square(predicted[0] - target).mean())
  np.testing.assert_allclose(total, sum(by_hand), rtol=1e-3)
  np.testing.assert_allclose(sums['loss'], total)
  assert sums['tokens'] == 3


def test_noise_and_times_are_those_of_the_seeds_of_rows():
  aim = objective(schedule='straight', prediction='flow')
  first, again = loss(aim)[0], loss(aim)[0]
  assert first == again != loss(aim, BATCH | dict(noise_seed=SEEDS + 1))[0]
  noise, t, _ = jax.vmap(functools.partial(aim.draw, (50, 50, 2)))(np.arange(40))
  np.testing.assert_allclose([noise.mean(), noise.std()], [0, 1], atol=0.01)
  assert (
    len({float(x) for x in t}) == 40 and abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.05
  )


def test_classes_are_dropped_in_training_alone():
  dropping, keeping = objective(class_dropout=1.0), objective(class_dropout=0.0)
  key = jax.random.key(0)
  assert loss(dropping)[0] == loss(keeping)[0] == loss(keeping, key=key)[0]
  nothing = loss(keeping, BATCH | dict(classes=np.full(4, 10, np.int32)))
  np.testing.assert_allclose(
    loss(dropping, BATCH | dict(classes=np.array([2, 9, 0, 5], np.int32)), key)[0], nothing[0], rtol=1e-5
  )
  dropped = jax.vmap(lambda seed: objective(class_dropout=0.1).draw((), seed)[2])(np.arange(2000))
  assert 0.08 < dropped.mean() < 0.12


def test_rows_have_their_own_noise_and_evaluation_is_the_same_every_time():
  experiment = Experiment(config())
  data = pipeline.open_data(experiment.source, None)
  aim, split = experiment.objective, data.tokens('validation')

  def seeds(seed):
    rows = aim.rows(experiment.packing, split, 16, seed, None)
    return [int(rows[i]['noise_seed']) for i in range(6)], rows

  (evaluated, rows), (again, _), (trained, _) = seeds(None), seeds(None), seeds(7)
  assert evaluated == again != trained and len({*evaluated, *trained}) == 12
  assert set(rows[0]) == set(aim.padding_row(16)) == {*BATCH}
  for field, value in aim.padding_row(16).items():
    assert np.shape(value) == np.shape(rows[0][field])
  [batch] = pipeline.evaluation_batches(rows, len(rows) + 2)
  assert (batch['classes'] < 0).sum() == 2


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (dict(schedule='quadratic'), "names 'quadratic', which does not exist"),
    (dict(schedule='linear(steps=1)'), 'steps=1 must be at least 2'),
    (dict(schedule='straight("cubic")'), "times='cubic' is not known; use one of uniform, logit_normal"),
    (dict(prediction='x'), "prediction='x' is not known; use one of 'epsilon', 'v', 'flow'"),
    (
      dict(schedule='straight', prediction='flow', learned_variance=True),
      "has no steps, whose variance learned_variance=True could learn; use 'linear' or 'cosine'",
    ),
    (dict(schedule='straight'), "prediction='epsilon' says nothing new; use 'flow' or 'v'"),
  ],
)
def test_refusals(fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    objective(**fields)


def test_another_number_of_classes_is_refused():
  experiment = Experiment(config(objective='diffusion(11)'))
  data = pipeline.open_data(experiment.source, None)
  with pytest.raises(ValueError, match='has classes=11, but digits train has 10: 0, 1, .*; use classes=10'):
    experiment.objective.rows(experiment.packing, data.tokens('train'), 16, 0, None)


class TestLearnedVariance:
  def test_the_bound_is_the_divergence_of_two_gaussians(self):
    """Equations 6 and 7 of Ho et al. 2020 for q, and their mean of x̂_0 with Σ of Nichol & Dhariwal for p."""
    path, draw = objective().path, np.random.default_rng(0)
    t = np.array([1, 40, 999])
    data, guess, x, shares = draw.uniform(-1, 1, (4, 3, 5))
    got = variational_bound(path, *map(jnp.asarray, (data, guess, shares)), jnp.asarray(t))
    kept, beta = path.alpha_bars, path.betas()
    for i, at in enumerate(t):
      before = kept[at - 1]
      true = (1 - before) / (1 - kept[at]) * beta[at]
      mean, other = (
        np.sqrt(before) * beta[at] / (1 - kept[at]) * x_0
        + np.sqrt(1 - beta[at]) * (1 - before) / (1 - kept[at]) * x[i]
        for x_0 in (data[i], guess[i])
      )
      v = (shares[i] + 1) / 2
      learned = np.exp(v * np.log(beta[at]) + (1 - v) * np.log(true))
      expected = np.log(learned / true) / 2 + (true + (mean - other) ** 2) / (2 * learned) - 0.5
      np.testing.assert_allclose(got[i], expected, rtol=2e-3, atol=1e-5)

  def test_the_levels_of_the_first_step_have_probabilities_that_add_up(self):
    path, levels = objective().path, np.linspace(-1, 1, 256)
    guess = np.full(256, 0.3)
    nats = variational_bound(
      path, *map(jnp.asarray, (levels[None], guess[None], guess[None])), jnp.array([0])
    )
    p = np.exp(-np.asarray(nats[0], np.float64))
    np.testing.assert_allclose(p.sum(), 1, atol=1e-5)
    np.testing.assert_allclose(levels[p.argmax()], 0.3, atol=1 / 255)

  def test_its_gradient_reaches_the_variance_alone(self):
    model, params = build_diffusion(objective='diffusion(10, learned_variance=True)')
    assert params['output']['kernel'].shape == (16, 2 * 4)
    fixed, learned = objective(), objective(learned_variance=True)

    def gradient(aim, parameters):
      def total(output):
        return aim(model_of[aim], parameters | dict(output=output), BATCH, None)[0]

      return jax.jit(jax.grad(total))(parameters['output'])['kernel']

    model_of = {fixed: model.clone(outputs=1), learned: model}
    # Outputs of a patch: of each pixel the prediction, then the share.
    halves = jax.tree.map(lambda x: x[..., ::2], params['output'])
    alone, both = gradient(fixed, params | dict(output=halves)), gradient(learned, params)
    np.testing.assert_allclose(both[:, ::2], alone, rtol=1e-3, atol=1e-4)
    assert np.abs(both[:, 1::2]).max() > 1e-6

  def test_the_bound_is_reported_and_weighs_little(self):
    model, params = build_diffusion(objective='diffusion(10, learned_variance=True)')
    aim = objective(learned_variance=True)
    total, sums = jax.jit(lambda batch: aim(model, params, batch, None))(BATCH)
    np.testing.assert_allclose(
      total, sums['loss'] + sums['variational_bound'], rtol=1e-5
    )  # 1000 steps · 0.001
    assert set(aim.summarize(sums, 0)) == {'loss', 'tokens', 'variational_bound'}
