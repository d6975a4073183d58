"""The step of models with experts: losses and loads of layers, accumulated and on meshes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training.steps import VOCAB, assert_trees_close, batch, initial, sgd, take_steps
from tfm.config.assemble import Experiment


EXPERTS = 'mixture_of_experts(experts=4, capacity=0.75, balance={}, z_loss={})'


def loss_and_metrics(tiny, key, **model):
  """((objective, sums), gradient) of one batch."""
  config = tiny(**{f'model.{name}': value for name, value in model.items()})
  model, objective = Experiment(config).build_model(VOCAB), Experiment(config).objective
  params = initial(model)
  loss = jax.value_and_grad(lambda params: objective(model, params, batch(), key), has_aux=True)
  return jax.jit(loss)(params)


@pytest.mark.slow
def test_losses_of_layers_are_minimised_and_logged(tiny):
  key = jax.random.key(0)
  (total, sums), gradient = loss_and_metrics(tiny, key, feed_forward=EXPERTS.format(0.5, 0.1))
  (plain, none), without = loss_and_metrics(tiny, key, feed_forward=EXPERTS.format(0.0, 0.0))
  assert 'auxiliary' not in none and plain == none['loss'] == sums['loss'] and sums['auxiliary'] > 0
  np.testing.assert_allclose(total - plain, sums['auxiliary'], rtol=1e-5)
  # For each of two layers: routing that is not far from even has a balance loss of about k = 2, and
  # log Σ exp r of about log 4.
  np.testing.assert_allclose(
    sums['auxiliary'] / sums['tokens'], 2 * (0.5 * 2 + 0.1 * np.log(4) ** 2), rtol=0.1
  )
  assert 0 < sums['dropped'] < sums['tokens'] < sums['load'] < 4 * sums['tokens']
  # They teach the routers, and through what these read the layers below.
  routers = [g['stack']['layers']['block_0']['feed_forward']['router']['kernel'] for g in (gradient, without)]
  assert np.abs(routers[0] - routers[1]).max() > 0.1 * np.abs(routers[1]).max()
  assert np.abs(gradient['embedding']['table'] - without['embedding']['table']).max() > 0


@pytest.mark.slow
def test_an_evaluation_tells_the_loss_alone(tiny):
  (total, sums), _ = loss_and_metrics(tiny, None, feed_forward=EXPERTS.format(0.5, 0.1))
  assert set(sums) == {'loss', 'accuracy', 'tokens'} and total == sums['loss']
  (_, sums), _ = loss_and_metrics(tiny, jax.random.key(0))
  assert set(sums) == {'loss', 'accuracy', 'tokens'}  # nor does a model whose layers report nothing


@pytest.mark.parametrize(
  'fields', [{'model.remat': 'full'}, {'model.remat': 'dots', 'training.loss_chunk': 64}], ids=str
)
@pytest.mark.slow
def test_reports_are_the_same_however_they_are_computed(tiny, fields):
  fields |= {'model.feed_forward': EXPERTS.format(0.5, 0.1)}
  expected, a = take_steps(sgd(tiny, **{'model.feed_forward': EXPERTS.format(0.5, 0.1)}))
  got, b = take_steps(sgd(tiny, **fields))
  assert got[0] == pytest.approx(expected[0], rel=1e-5)
  assert_trees_close(a.params, b.params, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_unscanned_layers_report_too(tiny):
  """Of one layer the parameters are the same either way but for an axis."""
  key, text = jax.random.key(0), EXPERTS.format(0.5, 0.1)
  config = tiny(**{'model.layers': 1, 'model.feed_forward': text})
  model, objective = Experiment(config).build_model(VOCAB), Experiment(config).objective
  params = initial(model)
  layers = jax.tree.map(lambda x: x[0], params['stack']['layers'])
  apart = Experiment(
    tiny(**{'model.layers': 1, 'model.feed_forward': text, 'model.scan': False})
  ).build_model(VOCAB)
  expected = jax.jit(lambda p: objective(model, p, batch(), key)[1])(params)
  got = jax.jit(lambda p: objective(apart, p, batch(), key)[1])(params | {'stack': {'layers_0': layers}})
  assert set(got) == set(expected) > {'auxiliary', 'load', 'dropped'}
  assert_trees_close(got, expected, rtol=1e-5, atol=0)


@pytest.mark.slow
def test_accumulated_losses_of_layers_are_means_over_tokens(tiny):
  """That of balance is none, so it is left out."""
  fields = {'model.feed_forward': 'mixture_of_experts(experts=4, balance=0.0, z_loss=0.5)'}
  whole, a = take_steps(sgd(tiny, **fields))
  pieces, b = take_steps(sgd(tiny, **fields, **{'training.gradient_accumulation': 4}))
  np.testing.assert_allclose(pieces[0]['auxiliary'], whole[0]['auxiliary'], rtol=1e-5)
  assert_trees_close(a.params, b.params, rtol=1e-4, atol=1e-6)


BIASED = {
  'model.feed_forward': 'mixture_of_experts(experts=3, balance=0.0, balance_bias=True)',
  'optimizer.balance_rate': 0.01,
  'optimizer.learning_rate': 0.0,  # so that only biases move
}


def balance_biases(state):
  return np.asarray(state.params['stack']['layers']['block_0']['feed_forward']['balance_bias'])


@pytest.mark.slow
def test_biases_move_towards_even_loads_and_nothing_else_notices(tiny):
  """Step by step by the sign of the excess load, and the loss and the norm of the gradient are those without
  biases."""
  config = sgd(tiny, **BIASED)
  model = Experiment(config).build_model(VOCAB)
  history, state = take_steps(config, steps=3)
  biases, params = np.zeros((2, 3)), take_steps(config, steps=0)[1].params
  objective = Experiment(config).objective
  gradient = jax.jit(jax.grad(lambda p, rows: objective(model, p, rows, jax.random.key(0))[0]))
  for step in range(3):
    params['stack']['layers']['block_0']['feed_forward']['balance_bias'] = jnp.asarray(biases, jnp.float32)
    excess = gradient(params, batch(seed=step))['stack']['layers']['block_0']['feed_forward']['balance_bias']
    assert np.abs(excess).max() > 0
    biases = biases - 0.01 * np.sign(excess)
  np.testing.assert_allclose(balance_biases(state), biases, atol=1e-7)
  plain = BIASED | {'model.feed_forward': 'mixture_of_experts(experts=3, balance=0.0)'}
  (without,), _ = take_steps(sgd(tiny, **plain))
  for name in ('loss', 'gradient_norm', 'load'):
    assert history[0][name] == pytest.approx(without[name], rel=1e-6)


@pytest.mark.parametrize(
  'fields, mesh',
  [
    ({'training.gradient_accumulation': 4}, None),
    ({}, dict(data=2, expert=2, tensor=2)),
    ({'pipeline.microbatches': 2}, dict(stage=2, data=4)),
    ({'model.remat': 'full'}, None),
    ({'model.dtype': 'float16'}, None),
  ],
  ids=str,
)
@pytest.mark.slow
def test_loads_are_those_of_the_whole_batch_however_it_is_computed(tiny, fields, mesh):
  biased = BIASED | {'model.feed_forward': 'mixture_of_experts(experts=4, balance=0.0, balance_bias=True)'}
  _, whole = take_steps(sgd(tiny, **biased), steps=3)
  _, parts = take_steps(sgd(tiny, **biased | fields), steps=3, mesh=mesh)
  assert balance_biases(whole).all()
  np.testing.assert_allclose(balance_biases(parts), balance_biases(whole), atol=1e-7)


@pytest.mark.sampled(0)
@pytest.mark.parametrize(
  'mesh, rules',
  [
    (dict(data=2, fsdp=2, tensor=2), {}),
    (dict(data=2, fsdp=2, tensor=2), {'rules.expert': 'tensor', 'rules.mlp': ''}),
    (dict(expert=4, data=2), {}),
    (dict(expert=4, fsdp=2), {}),
    (dict(expert=2, tensor=4), {}),
    (dict(expert=4, sequence=2), {}),
  ],
  ids=str,
)  # with stages balance is that of microbatches: tests/parallel/test_pipeline.py
def test_every_mesh_routes_alike(tiny, mesh, rules):
  fields = {'model.heads': 8, 'model.width': 64, 'model.feed_forward': EXPERTS.format(0.5, 0.1)}
  one, _ = take_steps(tiny(**fields), steps=2)
  many, _ = take_steps(tiny(**fields, **rules), steps=2, mesh=mesh)
  for got, expected in zip(many, one, strict=True):
    assert got == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize('capacity', [0.75, None])
@pytest.mark.slow
def test_gradients_of_experts_on_devices_of_their_own_are_those_of_one_device(tiny, capacity):
  """Leaf by leaf, with `expert` as the only axis; every expert learns."""
  fields = {
    'model.feed_forward': f'mixture_of_experts(experts=8, capacity={capacity}, balance=0.5, z_loss=0.1)'
  }
  (_, one), (_, many) = (take_steps(sgd(tiny, **fields), mesh=mesh) for mesh in (None, dict(expert=8)))
  assert_trees_close(many.params, one.params, rtol=1e-4, atol=1e-6)
  before = initial(Experiment(sgd(tiny, **fields)).build_model(VOCAB))
  up, was = (
    np.asarray(params['stack']['layers']['block_0']['feed_forward']['up']['kernel'])
    for params in (many.params, before)
  )
  assert up.shape[:2] == (2, 8) and (np.abs(up - was).max((2, 3)) > 1e-4).all()
