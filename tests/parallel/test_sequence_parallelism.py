"""Rows cut over devices: the numbers are those of one device, and no device ever has all tokens."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm.conformance.test_mesh import equal_on, sharded
from tfm.parallel import mesh as meshes
from tfm.parallel import sequence_parallelism, sharding


MIXERS = {
  'softmax': 'rope',
  'forgetting': 'none',
  'linear(chunk=2)': 'rope',
  'mamba': 'none',
  'mamba2(state=8, chunk=2, epsilon=0.1)': 'none',
  'gated_delta(chunk=2)': 'none',
}


@pytest.mark.slow
@pytest.mark.parametrize(
  'mixer', [pytest.param(name, marks=[] if name[:6] == 'linear' else pytest.mark.slow) for name in MIXERS]
)
def test_loss_and_gradients_are_those_of_one_device(mixer):
  equal_on(sharded(mixer=mixer, position=MIXERS[mixer], mask='causal'), dict(data=2, sequence=2, ulysses=2))


def test_a_state_goes_from_piece_to_piece():
  """h → a_t h + x_t, of which the numbers are known; and its derivatives by all that goes in."""
  draw = np.random.default_rng(0)
  a, x, h = (
    jnp.asarray(draw.uniform(0.5, 1, shape), jnp.float32) for shape in ((2, 16, 3), (2, 16, 3), (2, 3))
  )

  def scan(h, rows, scale):
    def step(h, row):
      h = row[0] * h + scale * row[1]
      return h, h

    last, y = jax.lax.scan(step, h, jax.tree.map(lambda x: x.swapaxes(0, 1), rows))
    return last, y.swapaxes(0, 1)

  def total(handed, h, rows, scale):
    last, y = handed(scan, h, rows, scale)
    return jnp.sin(y).sum() + jnp.cos(last).sum()

  def run(handed):
    return jax.jit(jax.value_and_grad(lambda *args: total(handed, *args), (0, 1, 2)))(
      h, (a, x), jnp.float32(0.7)
    )

  expected = run(lambda scan, *args: scan(*args))
  rules = sharding.parse_rules(dict(length='sequence ulysses'))
  with sharding.context(meshes.make(dict(sequence=4, ulysses=2)), rules):
    found = run(sequence_parallelism.scan_over_sequence_shards)
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('mixer', MIXERS)
def test_no_device_has_a_whole_row(mixer):
  """The compiled step holds no array as long as a row, but for positions and segments."""
  setup, T = sharded(mixer=mixer, position=MIXERS[mixer], mask='causal'), 56
  mesh = meshes.make(dict(sequence=8))
  batch = [jnp.zeros((1, T + 1), int), jnp.zeros((1, T), int), jnp.ones((1, T), int)]
  with sharding.context(mesh, setup.rules):
    text = (
      jax.jit(jax.grad(functools.partial(setup.loss, layout='packed')))
      .lower(setup.params, *batch)
      .compile()
      .as_text()
    )
  whole = {line for line in text.splitlines() if re.search(rf'f32\[[^\]]*\b{T}\b', line)}
  assert not whole, '\n'.join(sorted(whole)[:5])
