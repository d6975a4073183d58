"""Blocks without keys and values of their own: what they cost, and what kernels are told of positions."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tests.models import pairs
from tfm.config.assemble import Experiment
from tfm.conformance import tiny
from tfm.kernels.dense import Dense
from tfm.kernels.protocol import Kernel
from tfm.mixers.protocol import Context
from tfm.models.flops import with_kernel


SHARED = dict(layers=4, pattern=('own', 'other'), blocks=dict(own={}, other=dict(own_keys=False)))


@dataclasses.dataclass(frozen=True, eq=False)
class Recording(Kernel):
  """The dense kernel; it records the layout of each call."""

  layouts: list = dataclasses.field(default_factory=list)

  def attend(self, q, k, v, inputs):
    self.layouts.append(inputs.layout)
    return Dense().attend(q, k, v, inputs)


def record_layouts(model, *example):
  kernel = Recording()
  model = with_kernel(model, kernel)
  params = jax.eval_shape(model.init, jax.random.key(0), *example)['params']
  kernel.layouts.clear()
  jax.eval_shape(lambda params: model.apply({'params': params}, *example), params)
  return set(kernel.layouts)


@pytest.mark.parametrize('layout', ['contiguous', 'packed', 'arbitrary'])
def test_in_training_positions_are_as_regular_as_the_rows(layout):
  tokens = jnp.zeros((1, 8), jnp.int32)
  context = Context.contiguous(tokens).replace(layout=layout)
  assert record_layouts(tiny.decoder(**SHARED), tokens, context) == {layout}


def test_a_cache_and_another_sequence_are_arbitrary():
  model, tokens = tiny.decoder(**SHARED), jnp.zeros((1, 8), jnp.int32)
  context = Context.contiguous(tokens)
  assert record_layouts(model, tokens, context, model.init_caches(1, 9)) == {'arbitrary'}
  both = Experiment(pairs.config()).build_model(20)
  assert record_layouts(both, *both.example(1, 8)) == {'contiguous', 'arbitrary'}


def test_the_cache_is_that_of_the_blocks_with_keys():
  def size(**model):
    caches = jax.eval_shape(lambda: tiny.decoder(**model).init_caches(1, 100))
    return sum(x.size for x in jax.tree.leaves(caches))

  assert size(**SHARED) * 2 == size(layers=4)
