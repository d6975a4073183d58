"""Segment-level recurrence: a row is read in segments with cached states, through which no gradient flows."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.config.validate import validate_run
from tfm.conformance import tiny
from tfm.conformance.tiny import LENGTH, VOCAB
from tfm.mixers.protocol import Context
from tfm.objectives.causal_lm import CausalLM


pytestmark = pytest.mark.slow
SEGMENT = 4
DRAW = np.random.default_rng(0)
TOKENS = DRAW.permutation(VOCAB)[: LENGTH + 1][None].repeat(2, 0)
BATCH = dict(
  inputs=TOKENS[:, :-1],
  targets=TOKENS[:, 1:],
  positions=np.arange(LENGTH)[None].repeat(2, 0),
  segments=np.array([[1] * LENGTH, [1] * 6 + [2] * 4 + [0] * 2]),
)
BATCH['positions'][1] = [*range(6), *range(4), 0, 0]
MIXERS = [('softmax', 'transformer_xl'), ('recurrent', 'none'), ('mamba', 'none'), ('gated_delta', 'learned')]


def build(recurrence, mixer='softmax', position='transformer_xl', **model):
  config = tiny.config(mixer=mixer, position=position, **model)
  config.training.recurrence_length, config.data.packing = recurrence, 'first_fit'
  return Experiment(config).build_model(VOCAB), Experiment(config).objective


def loss(recurrence, mixer, position, weighted=slice(None), **model):
  """params → the summed loss of some columns in training form."""
  model, objective = build(recurrence, mixer, position, **model)
  keep = np.zeros(LENGTH, bool)
  keep[weighted] = True
  objective = weight_columns(objective, keep)
  batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), BATCH)
  return jax.jit(lambda params: objective(model, params, batch, jax.random.key(0))), tiny.parameters(model)


def weight_columns(objective, keep):
  """Returns the objective of some columns only; the others are read, and their targets do not count."""

  class Some(type(objective)):
    def prefix_and_weights(self, batch, key):
      prefix, weights = super().prefix_and_weights(batch, key)
      return prefix, weights * keep[None]

  return Some(**{field.name: getattr(objective, field.name) for field in dataclasses.fields(objective)})


@pytest.mark.parametrize('mixer, position', MIXERS)
def test_the_loss_is_that_of_the_whole_row(mixer, position):
  whole, params = loss(0, mixer, position)
  in_turn, _ = loss(SEGMENT, mixer, position)
  (a, sums), (b, others) = whole(params), in_turn(params)
  np.testing.assert_allclose(b, a, rtol=1e-5)
  assert sums.keys() == others.keys()


@pytest.mark.sampled(1)
@pytest.mark.parametrize('mixer, position', MIXERS)
def test_previous_segments_are_visible_and_have_no_gradient(mixer, position):
  last = slice(2 * SEGMENT, None)

  def gradient_norms(recurrence):
    f, params = loss(recurrence, mixer, position, last)
    by_row = jax.grad(lambda table: f(params | {'embedding': {'table': table}})[0])(
      params['embedding']['table']
    )
    return np.abs(np.asarray(by_row)[TOKENS[0, :-1]]).sum(
      -1
    )  # of the tokens of the row, each of which is another

  whole, truncated = gradient_norms(0), gradient_norms(SEGMENT)
  assert whole.all() and not truncated[: 2 * SEGMENT].any() and truncated[2 * SEGMENT :].all()
  # Visible nevertheless: another token before the segment changes its loss.
  f, params = loss(SEGMENT, mixer, position, last)
  table = params['embedding']['table']
  changed = params | {'embedding': {'table': table.at[TOKENS[0, 1]].multiply(-1.0)}}
  assert abs(f(changed)[0] - f(params)[0]) > 1e-4


class Noise(nn.Module):
  """Features: noise of dropout, the token, and how many segments were read before; it reports the noise."""

  def init_caches(self, rows, length):
    return jnp.float32(0)

  def features(self, tokens, context, caches):
    assert context.layout == 'arbitrary' and context.train
    noise = jax.random.normal(self.make_rng('dropout'), tokens.shape)
    self.sow('metrics', 'noise', noise.mean())
    return (jnp.stack([noise, tokens, jnp.full(tokens.shape, caches)], -1), caches + 1)


def test_segments_are_in_order_and_each_has_its_own_dropout():
  objective = CausalLM(chunk=0, layout='packed', recurrence=SEGMENT)
  context = Context(BATCH['positions'], BATCH['segments'], train=True, layout='packed')
  features, reports = objective.recurrent_features(
    Noise(), {}, jnp.asarray(BATCH['inputs'], jnp.float32), context, jax.random.key(0)
  )
  noise, tokens, before = np.moveaxis(np.asarray(features), -1, 0)
  np.testing.assert_array_equal(tokens, BATCH['inputs'])
  np.testing.assert_array_equal(before, [[0] * 4 + [1] * 4 + [2] * 4] * 2)
  assert len({*noise.reshape(-1).tolist()}) == noise.size
  np.testing.assert_allclose(reports['metrics']['noise'][0], noise.mean(), rtol=1e-5)


def test_one_segment_has_the_gradient_of_the_whole_row():
  def gradient(recurrence):
    f, params = loss(recurrence, 'softmax', 'transformer_xl')
    return jax.grad(lambda p: f(p)[0])(params)

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient(0), gradient(LENGTH)
  )


@pytest.mark.parametrize(
  'recurrence, objective, sentence',
  [
    (5, 'causal_lm', 'config.training.recurrence_length=5 must be 0 .* or divide config.data.length=12'),
    (-4, 'causal_lm', 'config.training.recurrence_length=-4 must be at least 0'),
    (
      4,
      'prefix_lm',
      'config.training.recurrence_length=4 reads rows in segments, '
      "which config.objective='prefix_lm' does not support",
    ),
  ],
)
def test_invalid_lengths_are_rejected(recurrence, objective, sentence):
  config = tiny.config()
  config.training.recurrence_length, config.objective = recurrence, objective
  with pytest.raises(ValueError, match=sentence):
    validate_run(Experiment(config), 8)
