"""Cross-attention: another sequence is read once, padding and neighbours change nothing, and who cannot
refuses.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tfm import spec
from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import collect
from tfm.conformance.tiny import config
from tfm.mixers.protocol import Context, Memory


B, T, S, D = 2, 5, 9, 16


class Crossed:
  """One mixer with parameters, applied with a memory."""

  def __init__(self, text, position='rope'):
    mask = (
      {'mask': 'full'} if collect.variant('mixer', text).supported_masks in (None, ('causal', 'full')) else {}
    )
    c = config(**collect.surroundings(text) | mask | ({'position': position} if position != 'rope' else {}))
    self.mixer = assemble.build_block(Experiment(c), 'model', c.model, causal=False)().mixer()
    draw = np.random.default_rng(0)
    self.x, self.y = (jnp.asarray(draw.standard_normal((B, n, D)), jnp.float32) for n in (T, S))
    shapes = jax.eval_shape(
      self.mixer.init, jax.random.key(0), self.x, None, Context.contiguous(self.x[..., 0]), None
    )
    self.params = jax.tree.map(
      lambda x: jnp.asarray(0.4 * draw.standard_normal(x.shape), jnp.float32), shapes.get('params', {})
    )
    self.compiled = jax.jit(self.apply)

  def apply(self, x, memory, context):
    return self.mixer.apply({'params': self.params}, x, memory, context, None)

  def __call__(self, x, memory, context):
    return self.compiled(x, memory, context)


crossings = functools.cache(Crossed)


def context(positions, segments):
  return Context(*(jnp.broadcast_to(jnp.asarray(x, jnp.int32), (B, len(x))) for x in (positions, segments)))


def mixers(supports_cross_attention):
  return [
    text
    for text in collect.specs('mixer')
    if collect.variant('mixer', text).supports_cross_attention == supports_cross_attention
  ]


@pytest.fixture(params=mixers(True))
def crossed(request):
  return crossings(request.param)


@pytest.mark.parametrize('text', mixers(False))
def test_a_mixer_that_reads_no_memory_refuses_it(text):
  mixer = crossings(text)
  there, here = (Context.contiguous(tokens[..., 0]) for tokens in (mixer.y, mixer.x))
  name = spec.parse(text).name
  with pytest.raises(ValueError, match=f"^mixer='{name}' does not support cross-attention; use 'softmax'$"):
    mixer(mixer.x, Memory(mixer.y, there), here)


def close(a, b):
  np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.sampled(3)
def test_a_memory_of_oneself_is_self_attention(crossed):
  here = Context.contiguous(crossed.x[..., 0])
  close(crossed(crossed.x, Memory(crossed.x, here), here)[0], crossed(crossed.x, None, here)[0])


def test_a_memory_is_read_once(crossed):
  """Its keys and values come back, and stand for it from then on, however few queries come at a time."""
  here = context(range(T), [1] * T)
  whole, read = crossed(crossed.x, Memory(crossed.y, context(range(S), [1] * S)), here)
  for t in range(T):
    one = jax.tree.map(lambda a: a[:, t : t + 1], here)
    y, same = crossed(crossed.x[:, t : t + 1], read, one)
    close(y, whole[:, t : t + 1])
    jax.tree.map(np.testing.assert_array_equal, same, read)


def test_padding_and_neighbours_of_the_memory_change_nothing(crossed):
  here, rest = context(range(T), [1] * T), jnp.full((B, 3, D), 7.0)
  plain, _ = crossed(crossed.x, Memory(crossed.y, context(range(S), [1] * S)), here)
  right = Memory(jnp.concatenate([crossed.y, rest], 1), context([*range(S), 4, 5, 6], [1] * S + [0] * 3))
  left = Memory(jnp.concatenate([rest, crossed.y], 1), context([4, 5, 6, *range(S)], [0] * 3 + [1] * S))
  packed = Memory(jnp.concatenate([crossed.y, rest], 1), context([*range(S), 0, 1, 2], [1] * S + [2] * 3))
  for memory in (right, left, packed):
    close(crossed(crossed.x, memory, here)[0], plain)


def test_the_result_depends_on_every_memory_token(crossed):
  here, there = context(range(T), [1] * T), context(range(S), [1] * S)

  def y(memory):
    return jnp.sin(crossed.apply(crossed.x, Memory(memory, there), here)[0]).sum()

  assert np.abs(jax.jit(jax.grad(y))(crossed.y)).max(-1).all()
