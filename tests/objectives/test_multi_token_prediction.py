"""Prediction of further tokens: the loss against its sum over tokens, and what training alone has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.objectives.on_mesh import require_equal_on_mesh
from tests.reference import layers
from tfm.config.assemble import Experiment
from tfm.config.resolve import resolve_config
from tfm.conformance import tiny
from tfm.conformance.tiny import LENGTH, VOCAB
from tfm.mixers.protocol import Context
from tfm.models import flops


pytestmark = pytest.mark.slow
DRAW = np.random.default_rng(0)
TOKENS = DRAW.integers(0, VOCAB, (2, LENGTH + 1))
SEGMENTS = np.array([[1] * LENGTH, [1] * 6 + [2] * 4 + [0] * 2])
POSITIONS = np.array([[*range(LENGTH)], [*range(6), *range(4), 0, 0]])
BATCH = dict(inputs=TOKENS[:, :-1], targets=TOKENS[:, 1:], positions=POSITIONS, segments=SEGMENTS)


def build(objective='multi_token_prediction(further=2, weight=0.6)', **model):
  config = tiny.config(**model)
  config.objective, config.data.packing = objective, 'first_fit'
  experiment = Experiment(resolve_config(config))
  return experiment.build_model(VOCAB), experiment.objective


def cross_entropy(logits, target):
  return np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target]


def test_loss():
  """Every further token of the same document, from a chain of blocks."""
  model, objective = build()
  params = tiny.parameters(model)
  assert {'further_0', 'further_1'} <= set(params)
  batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), BATCH)
  total, sums = jax.jit(lambda params: objective(model, params, batch, jax.random.key(0)))(params)

  context = Context(*(jnp.asarray(x, jnp.int32) for x in (POSITIONS, SEGMENTS)))
  x, _ = model.apply({'params': params}, batch['inputs'], context, method='features')
  h, expected = np.asarray(x), []
  p = jax.tree.map(np.asarray, params)
  for k in range(3):
    if k:
      own, e = p[f'further_{k - 1}'], p['embedding']['table'][np.roll(BATCH['inputs'], -k, 1)]
      joined = [layers.layernorm(y, **own[name]) for y, name in ((h, 'hidden_norm'), (e, 'embedding_norm'))]
      y = np.concatenate(joined, -1) @ own['project']['kernel']
      block = model.further[0](parent=None).block(parent=None)
      h = np.asarray(
        block.apply({'params': params[f'further_{k - 1}']['block_0']}, jnp.asarray(y), None, context, None)[0]
      )
      x = layers.layernorm(h, **own['norm'])
    logits = (np.asarray(x) @ p['output']['kernel'])[..., :VOCAB]
    expected.append(
      sum(
        cross_entropy(logits[row, t], BATCH['targets'][row, t + k])
        for row in range(2)
        for t in range(LENGTH - k)
        if SEGMENTS[row, t] and SEGMENTS[row, t] == SEGMENTS[row, t + k]
      )
    )
  np.testing.assert_allclose(sums['loss'], expected[0], rtol=1e-4)
  np.testing.assert_allclose(sums['auxiliary'], 0.3 * (expected[1] + expected[2]), rtol=1e-4)
  np.testing.assert_allclose(total, expected[0] + 0.3 * (expected[1] + expected[2]), rtol=1e-4)
  assert sums['tokens'] == (SEGMENTS > 0).sum()


def test_evaluation_and_decoding_use_the_model_alone():
  model, objective = build()
  params = tiny.parameters(model)
  plain, causal = build('causal_lm')
  shared = {name: value for name, value in params.items() if not name.startswith('further')}
  assert set(shared) == set(tiny.boxed(plain))
  batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), BATCH)
  ours, theirs = objective(model, params, batch, None), causal(plain, shared, batch, None)
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)
  tokens = jnp.asarray(TOKENS)
  a, b = (
    m.apply({'params': p}, tokens, Context.contiguous(tokens))[0]
    for m, p in ((model, params), (plain, shared))
  )
  np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('last', ['gelu', 'mixture_of_experts(experts=2)'])
def test_the_load_of_experts_counts_in_all_blocks_that_have_some(last):
  experts = dict(feed_forward='mixture_of_experts(experts=2)')
  model, objective = build(
    'multi_token_prediction(weight=0.0)',
    layers=2,
    pattern=('first', 'last'),
    blocks=dict(first=experts, last=dict(feed_forward=last)),
  )
  batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), BATCH)
  _, sums = objective(model, tiny.parameters(model), batch, jax.random.key(0))
  assert sums['auxiliary'] > 0


def test_further_tokens_train_the_trunk():
  model, objective = build('multi_token_prediction(weight=1000.0)')
  params = tiny.parameters(model)
  batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), BATCH)
  gradient = jax.jit(jax.grad(lambda params: objective(model, params, batch, jax.random.key(0))[0]))(params)
  assert all(np.isfinite(x).all() and np.abs(x).max() > 0 for x in jax.tree.leaves(gradient['further_0']))
  plain = jax.jit(jax.grad(lambda params: objective(model, params, batch, None)[0]))(params)
  q = [tree['stack']['layers']['block_0']['mixer']['q']['kernel'] for tree in (gradient, plain)]
  assert np.abs(q[0] - q[1]).max() > 10 * np.abs(q[1]).max()


@pytest.mark.parametrize('model', [dict(residual='hyper_connections'), dict(value_residual='gated')], ids=str)
def test_blocks_that_pass_on_more_are_refused(model):
  with pytest.raises(ValueError, match='has blocks of its own, which get one residual stream alone'):
    build(**model)


def test_the_mesh_changes_nothing():
  model, objective = build()
  batch = jax.tree.map(lambda x: jnp.asarray(np.tile(x, (2, 1)), jnp.int32), BATCH)
  require_equal_on_mesh(model, objective, batch, dict(data=2, fsdp=2, tensor=2))


def test_the_flops_of_training_are_those_of_all_modules():
  """Each further token costs a block, a projection of two vectors to one, and logits."""
  size = dict(layers=2, feed_forward='swiglu')
  (plain, _), (model, _) = build('causal_lm', **size), build(**size)
  read, trained, alone = (
    flops.per_token(plain, LENGTH).kinds,
    flops.per_token(model, LENGTH).kinds,
    flops.per_token(model, LENGTH, trains=False).kinds,
  )
  assert alone == read
  more = {name: trained[name] - count for name, count in read.items()}
  for name in ('mixer', 'feed_forward', f'mixer{flops.PAIRS}'):
    assert more[name] == pytest.approx(
      2 * read[name] / 2
    )  # two modules of one block; the model has two blocks
  assert more['output'] == pytest.approx(2 * read['output'])
  D = model.width
  assert sum(trained.values()) - sum(read.values()) - sum(more.values()) == pytest.approx(2 * 2 * 2 * D * D)
