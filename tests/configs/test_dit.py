"""The published sizes of DiT have the parameters of the paper."""

import math

import flax.linen as nn
import jax
import pytest

from tests.paths import ROOT
from tfm.config.assemble import Experiment
from tfm.config.load import load_config
from tfm.config.resolve import resolve_config
from tfm.config.validate import validate_run
from tfm.models import flops
from tfm.training import state as states


# Peebles & Xie 2023, Table 1 (layers, width, heads) and Table 4 (millions of parameters, by patch).
TABLE_1 = {'s': (12, 384, 6), 'b': (12, 768, 12), 'l': (24, 1024, 16), 'xl': (28, 1152, 16)}
TABLE_4 = {
  's': {2: 33, 4: 33, 8: 33},
  'b': {2: 130, 4: 130, 8: 131},
  'l': {2: 458, 4: 458, 8: 459},
  'xl': {2: 675, 4: 675, 8: 676},
}
NAMES = [f'{name}{patch}' for name, sizes in TABLE_4.items() for patch in sizes]


def formula(name):
  """From §3.2 of the paper: 4 channels in, 8 out, 1000 classes and none."""
  L, D, _ = TABLE_1[name[:-1]]
  pixels = int(name[-1]) ** 2
  attention, feed_forward, modulation = 4 * D * D + 4 * D, 8 * D * D + 5 * D, 6 * D * D + 6 * D
  condition = 256 * D + D + D * D + D + 1001 * D
  ends = (4 * pixels * D + D) + (2 * D * D + 2 * D) + (8 * pixels * D + 8 * pixels)
  return L * (attention + feed_forward + modulation) + condition + ends


def resolve(name):
  return resolve_config(load_config(f'{ROOT}/configs/dit.py:{name}'))


def count(name):
  model = Experiment(resolve(name)).build_model(0)
  boxed = jax.eval_shape(lambda key: states.init_params(model, key, 1, 0), jax.random.key(0))
  return sum(math.prod(x.shape) for x in jax.tree.leaves(nn.unbox(boxed)))


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=() if name == 'xl2' else pytest.mark.slow) for name in NAMES]
)
def test_parameters(name):
  assert count(name) == formula(name)


def test_the_formula_has_the_millions_of_the_paper():
  assert {name: round(formula(name) / 1e6) for name in NAMES} == {
    f'{name}{patch}': millions for name, sizes in TABLE_4.items() for patch, millions in sizes.items()
  }
  # The released weights of XL/2, which hold the sinusoids of 256 positions, too.
  assert formula('xl2') == 675_129_632 - 256 * 1152


@pytest.mark.parametrize('name, billions', [('s2', 6.06), ('xl2', 118.64)])
def test_multiplications_are_those_of_the_paper(name, billions):
  """Table 4's Gflops, which count a multiplication with its addition once."""
  config = resolve(name)
  counted = flops.per_token(Experiment(config).build_model(0), config.data.length).forward
  assert counted * config.data.length / 2e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize('name', ['s8', 'xl2'])
def test_sizes_are_those_of_the_paper_and_valid(name):
  config = resolve(name)
  assert (config.model.layers, config.model.width, config.model.heads) == TABLE_1[name[:-1]]
  assert (config.training.steps, config.training.batch_size) == (7_000_000, 256)  # §4 and Table 2
  validate_run(Experiment(config), 256)
