"""Maximal update parametrization: initial values, rates and scales by hand; the base width stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tfm
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.layers.initializer import lecun_normal, normal, xavier_uniform
from tfm.layers.parametrization import Mup
from tfm.parallel.sharding import Parameter, with_logical_axes
from tfm.training.gradient_transforms import path_name


pytestmark = pytest.mark.slow
BASE, WIDTH = 16, 64
M = WIDTH / BASE
TOKENS = jax.random.randint(jax.random.key(3), (2, 16), 0, 256)
# How the axes of an array are named, which ones are contracted, and what table 3 of the paper says.
ROLES = {
  'matrix': (('embed', 'mlp'), (0,), M**-0.5, 1 / M, 1),
  'to heads': (('embed', 'heads', 'kv'), (0,), M**-0.5, 1 / M, 1),
  'from heads': (('heads', 'kv', 'embed'), (0, 1), M**-0.5, 1 / M, 1),
  'embedding': (('vocab', 'embed'), (0,), 1, 1, M),
  'bias': (('mlp',), (), 1, 1, M),
  'output': (('embed', 'vocab'), (0,), 1 / M, 1 / M, 1 / M),
  'of neither': (('table', 'rank'), (0,), 1, 1, 1),
}
# Sizes at the base width; those of the width axes that exist are M times as large.
SIZES = dict(embed=BASE, mlp=4 * BASE, heads=4, kv=BASE // 4, vocab=40, table=24, rank=24)


def shape(names, m):
  grown = {'embed', 'mlp', 'heads'}
  return tuple(round(SIZES[name] * (m if name in grown else 1)) for name in names)


FACTORIES = dict(normal=normal(0.3), lecun=lecun_normal(), xavier=xavier_uniform(2.0))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
  'role, factory',
  [(role, name) for role in ROLES for name in FACTORIES if role != 'bias' or name == 'normal'],
)
def test_initial_values_and_rates(role, factory):
  names, inputs, deviation, adam, sgd = ROLES[role]
  axes = inputs, tuple(axis for axis in range(len(names)) if axis not in inputs)
  scaled = with_logical_axes(Mup(WIDTH, BASE).scale_initializer(FACTORIES[factory])(*axes), names)
  base = FACTORIES[factory](*axes)
  keys = jax.random.split(jax.random.key(1), 50)
  here = jax.vmap(lambda key: scaled(key, shape(names, M), jnp.float32).value)(keys)
  at_base = jax.vmap(lambda key: base(key, shape(names, 1), jnp.float32))(keys)
  np.testing.assert_allclose(jnp.std(here) / jnp.std(at_base), deviation, rtol=0.05)
  box = scaled(keys[0], shape(names, M), jnp.float32)
  for normalizes, factor in ((True, adam), (False, sgd)):
    assert Mup(WIDTH, BASE).rate_factor(box, normalizes) == pytest.approx(factor)


def test_stacked_layers_have_the_rates_of_one():
  stacked = Parameter(jnp.zeros((3, 8, 8)), ('layers', 'embed', 'vocab'), inputs=(-2,))
  assert Mup(WIDTH, BASE).rate_factor(stacked, False) == 1 / M


def test_scores():
  """√C₀ / C: 1/√C at the base width, 1/C above it."""
  assert Mup(BASE, BASE).score_scale(8) == pytest.approx(8**-0.5)
  assert Mup(WIDTH, BASE).score_scale(8) == pytest.approx(2**0.5 / 8)
  assert Mup(WIDTH, BASE, base_head_width=8).score_scale(8) == pytest.approx(8**-0.5)


def model(**fields):
  size = dict(layers=2, width=32, heads=4, feed_forward='swiglu') | fields
  return tfm.build(dict(model=size, data=dict(length=16)))


def logits(built, TOKENS):
  return built.apply(built.init(jax.random.key(0)), TOKENS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize('tied', [True, False])
def test_at_the_base_width_nothing_changes(tied):
  plain, same = (
    model(tie_embeddings=tied, parametrization=text) for text in ('standard', 'mup(base_width=32)')
  )
  np.testing.assert_array_equal(logits(plain, TOKENS), logits(same, TOKENS))


def test_logits_of_tied_embeddings_are_divided():
  built = model(layers=1, mixer='softmax', feed_forward='none', parametrization='mup(base_width=8)')
  plain = model(layers=1, mixer='softmax', feed_forward='none')
  params = built.init(jax.random.key(0))
  params = jax.tree_util.tree_map_with_path(
    lambda path, x: x * (0 if 'out/kernel' in path_name(path) else 1), params
  )
  np.testing.assert_allclose(4 * built.apply(params, TOKENS), plain.apply(params, TOKENS), rtol=1e-5)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'optimizer.name': 'adafactor'}, r"^config.optimizer.name='adafactor' has no rule for the rates"),
    (
      {'model.mixer': 'mamba', 'model.position': 'none'},
      r"^config.model.mixer='mamba' has no rule for config.model.parametrization=",
    ),
    ({'model.score': 'cosine'}, r"^config.model.score='cosine' has no rule"),
    ({'model.position': 'shaw'}, r"^config.model.position='shaw' has no rule"),
    ({'lora.rank': 2}, r'has no rule for adapters'),
    ({'model.parametrization': 'mup'}, r"^config.model.parametrization='mup' .*base_width"),
    ({'model.parametrization': 'mup(0)'}, r'^config.model.parametrization=.*base_width=0 must'),
  ],
)
def test_what_has_no_rule_is_refused(fields, message):
  config = complete(dict(model=dict(width=32, heads=4, layers=1, parametrization='mup(base_width=8)')))
  config.update_from_flattened_dict(fields)
  with pytest.raises(ValueError, match=message):
    experiment = Experiment(resolve_config(config))
    experiment.build_model(vocab=7)
    experiment.build_optimizer()
