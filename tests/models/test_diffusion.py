"""The diffusion transformer: its numbers, how it starts, and what cannot be is refused."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference import diffusion_transformer
from tfm.config.assemble import Experiment
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.models.diffusion import join_patches
from tfm.models.vision import extract_patches
from tfm.training import state as states


pytestmark = pytest.mark.slow
DRAW = np.random.default_rng(0)
IMAGES = DRAW.standard_normal((2, 8, 8, 1)).astype(np.float32)
TIMES, CLASSES = np.array([3.0, 870.5], np.float32), np.array([4, 10], np.int32)


def config(**fields):
  """A complete config of a tiny model of the digits, by dotted paths."""
  made = complete(
    dict(
      data=dict(source='digits', length=16, packing='each'),
      objective='diffusion(10)',
      model=dict(
        architecture='diffusion',
        residual='adaln_zero',
        patch=2,
        layers=2,
        scan=False,
        width=16,
        heads=4,
        position='sinusoidal_2d',
        norm='layernorm(1e-6, bias=False, scale=False)',
        feed_forward='gelu_tanh',
        bias=True,
      ),
    )
  )
  for path, value in fields.items():
    assign(made, path, value)
  return resolve_config(made)


@functools.cache
def build_diffusion(**fields):
  """The model, and parameters far from their initial values."""
  model, draw = Experiment(config(**fields)).build_model(0), np.random.default_rng(1)
  shapes = jax.eval_shape(lambda key: nn.unbox(states.init_params(model, key, 2, 0)), jax.random.key(0))
  return model, jax.tree.map(lambda x: jnp.asarray(0.3 * draw.standard_normal(x.shape), jnp.float32), shapes)


def predict(model, params):
  return jax.jit(lambda params: model.apply({'params': params}, *model.arguments(IMAGES, TIMES, CLASSES))[0])(
    params
  )


def test_the_numbers_are_those_of_the_paper():
  model, params = build_diffusion()
  expected = diffusion_transformer.forward(
    jax.tree.map(lambda x: np.asarray(x, np.float64), params), IMAGES, TIMES, CLASSES, patch=2, heads=4
  )
  assert expected.shape == (2, 8, 8, 1)
  np.testing.assert_allclose(predict(model, params), expected, rtol=2e-4, atol=2e-4)


def test_it_starts_with_zeros_from_blocks_that_are_the_identity():
  model, _ = build_diffusion()
  params = jax.jit(lambda key: nn.unbox(states.init_params(model, key, 2, 0)))(jax.random.key(0))
  assert not np.asarray(predict(model, params)).any()
  zero = {
    jax.tree_util.keystr(path[:-1], simple=True, separator='/')
    for path, x in jax.tree_util.tree_leaves_with_path(params)
    if path[-1].key == 'kernel' and not np.asarray(x).any()
  }
  blocks = {f'stack/layers_{i}/block_0' for i in range(2)}
  modulations = {f'{at}/{name}_modulation/projection' for at in blocks for name in ('mixer', 'feed_forward')}
  assert zero == modulations | {'modulation/projection', 'output'}
  x, context = jnp.asarray(DRAW.standard_normal((2, 16, 16)), jnp.float32), model.example(2, 0)[-1]
  context = context.replace(condition=jnp.asarray(DRAW.standard_normal((2, 16)), jnp.float32))
  y, _ = model.apply(
    {'params': params}, x, context, method=lambda m, x, context: m.blocks(x, None, context, None)
  )
  np.testing.assert_array_equal(y, x)


def test_patches_are_joined_as_they_were_cut():
  images = jnp.asarray(DRAW.standard_normal((2, 6, 8, 3)))
  np.testing.assert_array_equal(join_patches(extract_patches(images, 2), 2, (6, 8)), images)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    ({'model.residual': 'sequential'}, "residual='sequential' ignores the time and the class .*'adaln_zero'"),
    (
      {'model.norm_placement': 'post'},
      "residual='adaln_zero' is defined for norm_placement='pre', not 'post'",
    ),
    ({'model.patch': 0}, 'patch=0 does not divide the 8 × 8 pixels'),
    ({'data.length': 17}, 'length=17 is not the 16 patches of 2 × 2 pixels .* set it to 16'),
    ({'model.class_tokens': 1}, "class_tokens=1 needs an encoder, and .*'diffusion' ignores them"),
    ({'model.pooling': 'mean'}, "pooling='mean' needs an encoder"),
    ({'model.output_bias': True}, 'output_bias=True changes logits over the vocabulary'),
    ({'model.tie_embeddings': False}, 'tie_embeddings=False needs a vocabulary'),
    (
      {'model.architecture': 'encoder', 'objective': 'classification(10)', 'data.length': 17},
      "residual='adaln_zero' reads a time and a class, which .*'encoder' does not have; use 'sequential'",
    ),
    ({'objective': 'classification(10)'}, "trains 'encoder', not .*'diffusion'; use .*'diffusion\\(10\\)'"),
    ({'data.source': 'stdlib'}, "objective='diffusion\\(10\\)' trains on images with a label"),
  ],
)
def test_refusals(fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    experiment = Experiment(config(**fields))
    validate_run(experiment, 1)
    experiment.build_model(0)
