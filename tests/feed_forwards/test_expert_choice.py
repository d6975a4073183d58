"""Experts that choose their tokens: the formula, gradients, what a token's result depends on, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm
from tests.feed_forwards.test_mixture_of_experts import (
  VALID,
  D,
  F,
  X,
  draw_params,
  projections,
  require_same_gradients,
  run,
)
from tests.reference import layers
from tests.reference import mixture_of_experts as reference
from tfm.feed_forwards.expert_choice import ExpertChoice
from tfm.layers.initializer import normal


def make_layer(**settings):
  return ExpertChoice(D, F, True, normal(1.0), normal(1.0), jnp.float32, **settings)


@pytest.mark.parametrize(
  'settings',
  [dict(experts=4), dict(experts=4, capacity=0.3), dict(experts=3, capacity=1.25), dict(capacity=8.0)],
  ids=str,
)
def test_equals_the_formula(settings):
  module = make_layer(**settings)
  params = draw_params(module)
  g = reference.weights_by_experts(X, VALID, params['router']['kernel'], module.capacity)
  y = reference.mixture(X, g, lambda i, x: layers.feed_forward('swiglu', x, **projections(params, i)))
  np.testing.assert_allclose(run(module, params), y, rtol=2e-5, atol=2e-5 * np.abs(y).max())


def test_gradients_equal_those_of_the_dense_mixture():
  module = make_layer(experts=4, activation='gelu')
  params = jax.tree.map(jnp.float32, draw_params(module))
  g = reference.weights_by_experts(X, VALID, np.float64(params['router']['kernel']), module.capacity)

  def dense(params, x):
    weights = jnp.where(g > 0, jax.nn.softmax(x @ params['router']['kernel']), 0)
    up, down = params['up'], params['down']
    hidden = jnp.einsum('btd,edf->btef', x, up['kernel']) + up['bias'][None, None]
    out = jnp.einsum('btef,efd->bted', jax.nn.gelu(hidden, approximate=False), down['kernel'])
    return ((out + down['bias'][None, None]) * weights[..., None]).sum(2)

  require_same_gradients(module, dense, params)


def test_every_expert_has_the_same_load_and_what_none_takes_is_counted():
  module = make_layer(experts=4, capacity=1.0)
  params = draw_params(module)
  g = reference.weights_by_experts(X, VALID, params['router']['kernel'], 1.0)
  assert len({*map(tuple, (g > 0).sum(1))}) <= len(X) and ((g > 0).sum(1).std(1) == 0).all()
  _, sown = run(module, params, mutable=['metrics'])
  unchosen = (~(g > 0).any(-1) & VALID).sum() / VALID.sum()
  assert unchosen > 0
  np.testing.assert_allclose(sown['metrics']['unchosen'][0], unchosen, rtol=1e-6)


def test_a_later_token_takes_the_place_of_an_earlier_one():
  """Why a decoder may not have it."""
  module = make_layer(experts=2, capacity=0.5)
  params, everything = draw_params(module), np.ones_like(VALID)
  changed = X.copy()
  changed[:, -1] = 100 * np.asarray(params['router']['kernel'])[:, 0]
  before, after = (run(module, params, x, everything)[:, :-1] for x in (X, changed))
  assert (np.abs(before - after) > 1e-3).any()


@pytest.mark.parametrize(
  'config, message',
  [
    (dict(), r"^config.model.feed_forward='expert_choice' chooses among all tokens .*mixture_of_experts"),
    (
      dict(objective='masked_lm', model=dict(architecture='encoder'), data=dict(packing='first_fit')),
      r"^config.model.feed_forward='expert_choice' does not separate .* config.data.packing='first_fit'",
    ),
    (dict(model=dict(feed_forward='expert_choice(2, capacity=3.0)')), r'capacity=3.0 .*at most experts=2'),
    (dict(model=dict(feed_forward='expert_choice(activation="tanh")')), r"activation='tanh'"),
  ],
)
def test_what_it_cannot_be_used_for_is_refused(config, message):
  model = dict(layers=1, width=16, heads=2, feed_forward='expert_choice') | config.get('model', {})
  with pytest.raises(ValueError, match=message):
    tfm.build(dict(data=dict(length=16)) | config | dict(model=model))


def test_an_encoder_has_it():
  model = dict(architecture='encoder', layers=2, width=16, heads=2, feed_forward='expert_choice')
  built = tfm.build(dict(model=model, objective='masked_lm', data=dict(length=16)))
  result = built.apply(built.init(jax.random.key(0)), jnp.ones((2, 16), jnp.int32))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(result))
