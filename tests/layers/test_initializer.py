"""Initializers: their moments, their fans, their names."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.conformance.tiny import VOCAB, boxed, config, decoder
from tfm.layers.initializer import (
  INITIALIZERS,
  lecun_normal,
  normal,
  scale_initializer,
  truncated_normal,
  xavier_uniform,
)
from tfm.mixers.protocol import Context


# Fan in 40, fan out 60 · 50; 120 000 numbers, so moments are known to half a percent.
SHAPE, INPUTS, OUTPUTS = (40, 60, 50), (0,), (1, 2)


def draw(factory, shape=SHAPE, inputs=INPUTS, outputs=OUTPUTS):
  return np.asarray(factory(inputs, outputs)(jax.random.key(0), shape, jnp.float32))


@pytest.mark.parametrize(
  'factory, stddev, largest',
  [
    (normal(0.02), 0.02, None),
    (normal(0.5), 0.5, None),
    (truncated_normal(0.02), 0.02 * 0.87963, 0.04),  # truncated at two deviations, which lowers the deviation
    (xavier_uniform(), (2 / 3040) ** 0.5, (6 / 3040) ** 0.5),
    (xavier_uniform(2.0), (4 / 3040) ** 0.5, (12 / 3040) ** 0.5),
    (lecun_normal(), 40**-0.5, 2 * 40**-0.5 / 0.87963),  # corrected for the truncation
    (lecun_normal(3.0), (3 / 40) ** 0.5, None),
    (scale_initializer(normal(0.5), 0.1), 0.05, None),
    (scale_initializer(lecun_normal(), 0.25), 0.25 * 40**-0.5, None),
  ],
  ids=lambda x: str(x((0,), (1,))) if callable(x) else None,
)
def test_moments(factory, stddev, largest):
  x = draw(factory)
  assert abs(x.mean()) < 0.02 * stddev and abs(x.std() / stddev - 1) < 0.02
  assert largest is None or 0.98 * largest < np.abs(x).max() <= largest * 1.0001


def test_two_contracted_axes_are_both_fan_in():
  x = draw(lecun_normal(), inputs=(0, 1), outputs=(2,))
  assert abs(x.std() * 2400**0.5 - 1) < 0.02


def test_names_include_all_settings():
  assert {name: str(factory()((0,), (1,))) for name, factory in INITIALIZERS.items()} == {
    'normal': 'normal(0.02)',
    'truncated_normal': 'truncated_normal(0.02)',
    'xavier_uniform': 'xavier_uniform(1.0)',
    'lecun_normal': 'lecun_normal(1.0)',
  }
  assert str(scale_initializer(normal(0.1), 0.5)((0,), (1,))) == 'normal(0.1) · 0.5'


@functools.cache
def init_model(layers, **model):
  """(standard deviations of the initial kernels of a model by name, its parameters)."""
  network = Experiment(
    config(
      layers=layers,
      width=64,
      heads=4,
      feed_forward_width=256,
      scan=True,
      initializer='normal(0.3)',
      embedding_initializer='normal(0.05)',
      **model,
    )
  ).build_model(VOCAB)
  tokens = jnp.zeros((1, 2), jnp.int32)
  init = jax.jit(network.init)
  params = init(jax.random.key(0), tokens, Context.contiguous(tokens))['params']
  block = params['stack']['layers']['block_0']
  kernels = {name: block['mixer'][name]['kernel'] for name in ('q', 'k', 'v', 'out')}
  kernels |= {name: block['feed_forward'][name]['kernel'] for name in ('up', 'down')}
  kernels |= dict(table=params['embedding']['table'], output=params['output']['kernel'])
  return {name: float(box.value.std()) for name, box in kernels.items()}, params


@pytest.mark.parametrize('depth_scaled', [True, False])
def test_projections_into_the_residual_stream_shrink_with_depth(depth_scaled):
  """1/√(2 layers), for two branches a layer (Radford et al. 2019, §2.3)."""
  stddev, _ = init_model(8, depth_scaled=depth_scaled)
  small = 0.3 / 4 if depth_scaled else 0.3
  expected = dict(q=0.3, k=0.3, v=0.3, up=0.3, output=0.3, table=0.05, out=small, down=small)
  assert stddev == pytest.approx(expected, rel=0.06)


def test_deepnorm_shrinks_values_and_hidden_layers_too():
  """β = (8 · 8)^(-1/4) for a decoder of eight layers (Wang et al. 2022)."""
  stddev, _ = init_model(8, residual='deepnorm', norm_placement='post')
  small = 0.3 / 8**0.5
  expected = dict(q=0.3, k=0.3, v=small, up=small, out=small, down=small)
  assert {name: stddev[name] for name in expected} == pytest.approx(expected, rel=0.06)


def test_scanned_layers_start_differently():
  _, params = init_model(8, depth_scaled=True)
  q = params['stack']['layers']['block_0']['mixer']['q']['kernel'].value
  assert q.shape[0] == 8 and all((q[0] != q[i]).any() for i in range(1, 8))


def test_the_parameter_table_names_the_initializers():
  block = boxed(decoder(layers=8))['stack']['layers']['block_0']
  assert block['mixer']['q']['kernel'].initializer == 'normal(0.02)'
  assert block['mixer']['out']['kernel'].initializer == 'normal(0.02) · 0.25'
  assert block['mixer']['q']['bias'].initializer == 'zeros'
  assert block['mixer_norm']['scale'].initializer == 'ones'


def test_depth_scaling_counts_residual_branches():
  """A block without a feed-forward layer has one branch."""
  blocks = dict(alone=dict(feed_forward='none'), whole=dict(feed_forward='relu'))
  for model, branches in (
    (dict(layers=9, feed_forward='none', feed_forward_width=None), 9),
    (dict(layers=6, pattern=('alone', 'alone', 'whole'), blocks=blocks), 8),
    (dict(layers=4, pattern=('alone', 'alone', 'whole'), blocks=blocks), 5),
  ):
    block = boxed(decoder(**model))['stack']['layers']['block_0']
    assert block['mixer']['out']['kernel'].initializer == f'normal(0.02) · {branches**-0.5:.4g}'


def test_query_init_scales_queries_only():
  """For scores that do not scale the products of queries and keys (T5)."""
  mixer = boxed(decoder(mixer='softmax(query_init_scale=0.125)'))['stack']['layers']['block_0']['mixer']
  initializers = {name: mixer[name]['kernel'].initializer for name in ('q', 'k', 'v')}
  assert initializers == dict(q='normal(0.02) · 0.125', k='normal(0.02)', v='normal(0.02)')


def test_qkv_init_scales_what_is_projected_from_the_input():
  """As in fairseq; the queries' own factor comes on top."""
  spec = 'softmax(query_init_scale=0.125, qkv_init_scale=0.5)'
  mixer = boxed(decoder(mixer=spec))['stack']['layers']['block_0']['mixer']
  initializers = {name: mixer[name]['kernel'].initializer for name in ('q', 'k', 'v', 'out')}
  assert (
    initializers.pop('out')
    == boxed(decoder())['stack']['layers']['block_0']['mixer']['out']['kernel'].initializer
  )
  assert initializers == dict(q='normal(0.02) · 0.0625', k='normal(0.02) · 0.5', v='normal(0.02) · 0.5')
