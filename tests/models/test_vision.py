"""The Vision Transformer: patches, class token or mean, and what cannot be is refused."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.config.assemble import Experiment
from tfm.config.overlay import assign, complete
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.mixers.protocol import Context
from tfm.models import flops, vision
from tfm.training import state as states


IMAGES = np.random.default_rng(0).standard_normal((2, 8, 8, 1)).astype(np.float32)


def config(**fields):
  """A complete config of a tiny model of the digits, by dotted paths."""
  make_vision = complete(
    dict(
      data=dict(source='digits', length=17, packing='each'),
      objective='classification(10)',
      model=dict(
        architecture='encoder',
        patch=2,
        layers=1,
        scan=False,
        width=16,
        heads=2,
        position='learned',
        bias=True,
      ),
    )
  )
  for path, value in fields.items():
    assign(make_vision, path, value)
  return resolve_config(make_vision)


def make_vision(**fields):
  """(parameters, images) → features and logits of a model, and parameters far from their initial values."""
  chosen, draw = config(**fields), np.random.default_rng(0)
  model = Experiment(chosen).build_model(0)

  @jax.jit
  def read(params, images):
    def both(model, x):
      features = model.features(x, context)
      return features, model.classify('classification', features, context)

    context = Context.contiguous(jnp.zeros((len(images), chosen.data.length), jnp.int32))
    return model.apply({'params': params}, images, method=both)

  params = jax.tree.map(
    lambda x: jnp.asarray(0.3 * draw.standard_normal(x.shape), jnp.float32), shapes(model)
  )
  return read, params


def shapes(model):
  return nn.unbox(jax.eval_shape(lambda key: states.init_params(model, key, 1, 0), jax.random.key(0)))


def test_patches_are_cut_row_by_row():
  images = np.random.default_rng(0).standard_normal((2, 6, 8, 3))
  cut = np.asarray(vision.extract_patches(jnp.asarray(images), 2))
  assert cut.shape == (2, 12, 12)
  for b, row, column in np.ndindex(2, 3, 4):
    patch = [images[b, 2 * row + y, 2 * column + x, c] for y in range(2) for x in range(2) for c in range(3)]
    np.testing.assert_allclose(cut[b, 4 * row + column], patch, rtol=1e-6)


def test_the_class_token_stands_before_the_patches():
  """Its place is position 0, and what is classified is what it becomes."""
  read, params = make_vision()
  x, logits = map(np.asarray, read(params, IMAGES))
  head = jax.tree.map(np.asarray, params['classification']['classes'])
  np.testing.assert_allclose(logits, x[:, 0] @ head['kernel'] + head['bias'], rtol=1e-5, atol=1e-5)
  assert params['position_0']['table'].shape == (17, 16) and params['class_token']['table'].shape == (1, 16)
  other = params | dict(class_token=jax.tree.map(lambda x: -2 * x, params['class_token']))
  assert np.abs(read(other, IMAGES)[1] - logits).max() > 1e-3


def test_two_tokens_have_a_head_each_and_the_logits_are_the_mean():
  read, params = make_vision(**{'model.pooling': 'first_two', 'data.length': 18})
  x, logits = map(np.asarray, read(params, IMAGES))
  one, other = (jax.tree.map(np.asarray, params['classification'][name]) for name in ('classes', 'classes_1'))
  expected = (x[:, 0] @ one['kernel'] + one['bias'] + x[:, 1] @ other['kernel'] + other['bias']) / 2
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
  assert params['class_token']['table'].shape == (2, 16)
  turned = params | dict(class_token=jax.tree.map(lambda x: x[::-1], params['class_token']))
  assert np.abs(read(turned, IMAGES)[1] - logits).max() > 1e-3


def test_a_second_class_token_that_nothing_reads():
  read, params = make_vision(**{'model.class_tokens': 2, 'data.length': 18, 'model.position': 'learned_2d'})
  x, logits = map(np.asarray, read(params, IMAGES))
  head = jax.tree.map(np.asarray, params['classification']['classes'])
  np.testing.assert_allclose(logits, x[:, 0] @ head['kernel'] + head['bias'], rtol=1e-5, atol=1e-5)
  assert params['position_0']['table'].shape == (18, 16) and set(params['classification']) == {'classes'}


def test_the_mean_of_patches_knows_no_order_but_by_positions():
  read, params = make_vision(**{'model.pooling': 'mean', 'model.position': 'none', 'data.length': 16})
  assert 'class_token' not in params
  x, logits = map(np.asarray, read(params, IMAGES))
  turned = IMAGES.reshape(2, 4, 2, 8, 1)[:, ::-1].reshape(IMAGES.shape)  # rows of patches, the last first
  np.testing.assert_allclose(read(params, turned)[1], logits, atol=1e-5)
  head = jax.tree.map(np.asarray, params['classification']['classes'])
  np.testing.assert_allclose(logits, x.mean(1) @ head['kernel'] + head['bias'], rtol=1e-5, atol=1e-5)


def test_another_resolution_reads_the_same_parameters():
  small, large = (
    config(),
    config(
      **{
        'data.source': "images('photographs', 12, channels=1)",
        'data.length': 37,
        'model.position': 'learned_2d(original=(4, 4))',
      }
    ),
  )
  a, b = (
    jax.tree.map(lambda x: x.shape, shapes(Experiment(chosen).build_model(0))) for chosen in (small, large)
  )
  assert a == b


def test_flops_are_those_of_the_products():
  model = Experiment(config()).build_model(0)
  kinds = flops.per_token(model, 17).kinds
  assert kinds['patches'] == pytest.approx(16 * 2 * 4 * 16 / 17)
  assert kinds['classification'] == pytest.approx(2 * 16 * 10 / 17)
  assert kinds['feed_forward'] == pytest.approx(2 * 2 * 16 * 64)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (
      {'model.patch': 3},
      r'patch=3 does not divide the 8 × 8 pixels of config.data.source=.digits. .*use one of 1, 2, 4, 8',
    ),
    ({'model.patch': 0}, r'patch=0 does not divide the 8 × 8 pixels'),
    (
      {'data.source': 'stdlib'},
      r"patch=2 needs images, and config.data.source='stdlib' has text; leave it at 0",
    ),
    (
      {'data.length': 16},
      'length=16 is not the 16 patches of 2 × 2 pixels .* and the class token; set it to 17',
    ),
    (
      {'model.pooling': 'mean'},
      "length=17 is not the 16 patches of 2 × 2 pixels of config.data.source='digits'; set it to 16",
    ),
    ({'model.pooling': 'first_two'}, 'length=17 is not the 16 patches .* and 2 class tokens; set it to 18'),
    (
      {'model.pooling': 'first_two', 'model.class_tokens': 1},
      "class_tokens=1 is less than the 2 that .*pooling='first_two' reads",
    ),
    ({'model.pooling': 'none'}, "pooling='none' is unknown; known: first, first_two, mean"),
    ({'data.source': 'stdlib', 'model.patch': 0, 'model.class_tokens': 1}, 'class_tokens=1 needs images'),
    (
      {'data.source': 'stdlib', 'model.patch': 0, 'model.pooling': 'first_two'},
      "first_two' needs the class tokens of images",
    ),
    ({'model.token_types': 2}, 'token_types=2 needs a vocabulary, which images do not have; leave it at 0'),
    ({'model.tie_embeddings': False}, 'tie_embeddings=False needs a vocabulary'),
    (
      {'model.embedding_width': 8},
      'embedding_width=8 needs a vocabulary, which images do not have; leave it at 16',
    ),
    ({'model.architecture': 'decoder'}, "model.architecture='decoder'"),
  ],
)
def test_refusals_of_the_model(fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    Experiment(config(**fields)).build_model(0)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (
      {'data.tokenizer': 'char'},
      r"tokenizer='char' has no effect on the images of config.data.source='digits'; leave it at 'bytes'",
    ),
    (
      {'objective': 'masked_lm', 'data.packing': 'concat'},
      "masked_lm. trains on texts, .*source='digits' has image and label",
    ),
    (
      {'data.packing': 'concat'},
      "packing='concat' does not pack images with a label; use a packing such as 'each'",
    ),
  ],
)
def test_refusals_of_the_run(fields, sentence):
  with pytest.raises(ValueError, match=sentence):
    validate_run(Experiment(config(**fields)), 1)
