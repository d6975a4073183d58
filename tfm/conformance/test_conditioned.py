"""Residuals that read a condition: rows, scan, gradients and meshes of a diffusion model with them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.conformance import collect
from tfm.conformance.sentences import require_finite
from tfm.conformance.test_mesh import axes
from tfm.conformance.tiny import boxed, denoiser, parameters
from tfm.decoding.unroll_layers import unroll_layers
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


IMAGES = np.random.default_rng(0).standard_normal((8, 8, 8, 1)).astype(np.float32)
TIMES, CLASSES = np.linspace(1, 999, 8, dtype=np.float32), np.arange(8, dtype=np.int32)


class Denoiser:
  """A model with a residual, and random parameters."""

  def __init__(self, text):
    self.model, self.config = denoiser(residual=text)
    self.params = parameters(self.model)

  def read(self, images=IMAGES, times=TIMES, classes=CLASSES):
    return np.asarray(self.apply(self.params, images, times, classes))

  @functools.cached_property
  def apply(self):
    return jax.jit(
      lambda params, *inputs: self.model.apply({'params': params}, *self.model.arguments(*inputs))[0]
    )

  def loss(self, params):
    return jnp.square(self.apply(params, IMAGES, TIMES, CLASSES)).mean()


tiny = functools.cache(Denoiser)


@pytest.mark.parametrize('text', collect.conditioned())
class TestConditioned:
  def test_rows_read_their_own_image_time_and_class(self, text):
    expected = tiny(text).read()
    assert expected.shape == IMAGES.shape and np.isfinite(expected).all()
    for field, values in (('images', IMAGES), ('times', TIMES), ('classes', CLASSES)):
      values = values.copy()
      values[3] += 1
      changes = np.abs(tiny(text).read(**{field: values}) - expected).reshape(8, -1).max(1)
      assert changes[3] > 1e-4, f'{field} of a row changed, and its output did not'
      assert np.delete(changes, 3).max() < 1e-5, f'{field} of a row changed the outputs of others'

  def test_scanned_layers_equal_unrolled_layers(self, text):
    one = tiny(text)
    model, params = unroll_layers(one.model, one.params)
    got = jax.jit(model.apply)({'params': params}, *model.arguments(IMAGES, TIMES, CLASSES))[0]
    np.testing.assert_allclose(got, one.read(), rtol=2e-5, atol=2e-5)

  def test_gradients_are_finite_and_reach_all_parameters(self, text):
    gradients = jax.grad(tiny(text).loss)(tiny(text).params)
    for path, x in jax.tree_util.tree_leaves_with_path(gradients):
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      require_finite(np.asarray(x), f'gradients of {name} with {text}')
      # Softmax attention is the same whatever the bias of its keys.
      assert np.asarray(x).any() or name.endswith('k/bias'), f'{name} has no gradient'

  @pytest.mark.sampled(0)
  @pytest.mark.parametrize('sizes', [axes((2, 2, 2)), dict(stage=2, data=2, fsdp=2)], ids=str)
  def test_the_mesh_changes_nothing(self, text, sizes):
    one = tiny(text)
    expected, gradients = jax.value_and_grad(one.loss)(one.params)
    mesh, rules = meshes.make(sizes), sharding.parse_rules(one.config.rules)
    with sharding.context(mesh, rules):
      params = jax.device_put(one.params, sharding.named_shardings(boxed(one.model), mesh, rules))
      got, sharded = jax.jit(jax.value_and_grad(one.loss))(params)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradients))
    for a, b in zip(*map(jax.tree.leaves, (sharded, gradients))):
      np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * largest)
