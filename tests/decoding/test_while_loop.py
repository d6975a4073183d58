"""The loop that changes its caches in place: it is a loop of JAX, and no token copies a cache."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.tiny import tiny_model
from tfm.decoding import beam, loop
from tfm.decoding.sampling import Sampling, row_keys
from tfm.decoding.unroll_layers import unroll_layers
from tfm.decoding.while_loop import while_loop


SLOTS = 48
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize('rows, kv_heads', [(1, 4), slow(1, 1), slow(8, 4), (8, 1)])
def test_no_token_copies_a_cache(rows, kv_heads):
  model, params = unroll_layers(*tiny_model(kv_heads=kv_heads))
  state = loop.State(
    loop.allocate_caches(model, rows, SLOTS),
    jnp.zeros(rows, jnp.int32),
    jnp.zeros(rows, jnp.int32),
    jnp.zeros(rows, bool),
  )
  keys = row_keys(0, [[0]] * rows, [0] * rows)
  text = loop.decode_chunk.lower(model, params, state, keys, Sampling(), -1, 8, 8).compile().as_text()
  assert not copied_caches(text, SLOTS)


@pytest.mark.parametrize('rows', [slow(1), 8])
def test_no_step_of_a_beam_search_copies_a_cache(rows, monkeypatch):
  model, params = unroll_layers(*tiny_model())
  run_steps, texts = beam.run_steps, []

  def run(*args):
    texts.append(run_steps.lower(*args).compile().as_text())
    return run_steps(*args)

  monkeypatch.setattr(beam, 'run_steps', run)
  settings = beam.BeamSearch(4, beam.Power(1.0), 'likely')
  beam.search(model, params, [np.arange(20)] * rows, max_tokens=8, eos=-1, settings=settings)
  slots = {int(n) for n in re.findall(rf'f32\[(?:{rows},)?4,(\d+),4\]', texts[0]) if int(n) >= 28}
  assert slots and not any(copied_caches(texts[0], n) for n in slots)


def copied_caches(text, slots):
  """The copies of arrays of so many slots in the loop of a compiled program, which has some."""
  [body] = {name for name in re.findall(r'body=%([\w.]+)', text) if 'block_0' in computation(text, name)}
  assert re.search(rf'\[[\d,]*\b{slots},', computation(text, body))
  return re.findall(rf'= \w+\[[\d,]*\b{slots},[\d,]*\]\S* copy\(', computation(text, body))


def computation(text, name):
  """The lines of one computation of a compiled program."""
  return re.search(rf'^%{re.escape(name)} .*?^}}', text, re.MULTILINE | re.DOTALL)[0]


def test_it_is_a_loop_of_jax():
  """Of axes of length 1 and others, of keys, of integers."""

  def step(carry):
    i, x, key = carry
    key, own = jax.random.split(key)
    return i + 1, {name: y + jax.random.uniform(own, y.shape) for name, y in x.items()}, key

  shapes = [(), (1,), (1, 2), (1, 2, 3), (2, 1, 3), (1, 1, 3), (2, 3, 1), (1, 1, 1), (0, 1, 2)]
  carry = (0, {str(shape): jnp.zeros(shape) for shape in shapes}, jax.random.key(0))

  def is_unfinished(carry):
    i, x, _ = carry
    return (i < 5) & (x['(1, 2, 3)'].shape == (1, 2, 3))

  expected, found = (
    jax.jit(lambda carry, loop=loop: loop(is_unfinished, step, carry))(carry)
    for loop in (jax.lax.while_loop, while_loop)
  )
  assert found[0] == 5 and found[2] == expected[2]
  jax.tree.map(np.testing.assert_array_equal, expected[1], found[1])
