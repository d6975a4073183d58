"""AdaLN-Zero against its formula, and without a condition."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_block import X, block, f, g, n
from tfm.mixers.protocol import Context


B, T, D = X.shape
CONDITION = np.random.default_rng(1).standard_normal((B, D)).astype(np.float32)
BARE = Context.contiguous(jnp.zeros((B, T), jnp.int32))
CONTEXT = BARE.replace(condition=jnp.asarray(CONDITION))


def read(params, context=CONTEXT, **fields):
  return block(residual='adaln_zero', **fields).apply(
    {'params': params}, jnp.asarray(X), None, context, None
  )[0]


def initial(**fields):
  made = block(residual='adaln_zero', **fields)
  return nn.unbox(made.init(jax.random.key(0), jnp.asarray(X), None, CONTEXT, None)['params'])


def drawn():
  draw = np.random.default_rng(2)
  return jax.tree.map(lambda x: jnp.asarray(draw.standard_normal(x.shape), jnp.float32), initial())


def test_a_block_starts_as_the_identity():
  np.testing.assert_array_equal(read(initial()), X)


def test_the_formula():
  params, c = drawn(), CONDITION / (1 + np.exp(-CONDITION))
  p, x = jax.tree.map(np.asarray, params), X
  for name, branch in (('mixer', f), ('feed_forward', g)):
    kernel, bias = (p[f'{name}_modulation']['projection'][part] for part in ('kernel', 'bias'))
    shift, scale, gate = ((c @ kernel[:, i] + bias[i])[:, None] for i in range(3))
    x = x + gate * branch((1 + scale) * n(p[f'{name}_norm']['a'], x) + shift)
  np.testing.assert_allclose(read(params), x, rtol=1e-5, atol=1e-5)


def test_rows_read_their_own_condition():
  params, other = drawn(), CONTEXT.replace(condition=CONTEXT.condition.at[1].add(1.0))
  changed = np.abs(np.asarray(read(params, other)) - np.asarray(read(params))).max((1, 2))
  assert changed[0] == 0 and changed[1] > 1e-3


def test_the_condition_has_a_gradient():
  def loss(condition):
    return jnp.square(read(params, CONTEXT.replace(condition=condition))).sum()

  params = drawn()
  gradient = jax.grad(loss)(CONTEXT.condition)
  step, at = 1e-2, (1, 2)
  change = [loss(CONTEXT.condition.at[at].add(by)) for by in (step, -step)]
  np.testing.assert_allclose(gradient[at], (change[0] - change[1]) / (2 * step), rtol=1e-2)


def test_a_mixer_alone_has_one_modulation():
  assert set(initial(feed_forward=None)) == {'mixer_norm', 'mixer_modulation'}


def test_a_row_without_a_condition_is_refused():
  sentence = "reads a condition of each row, and the context has none; .* architecture='diffusion'"
  with pytest.raises(ValueError, match=sentence):
    read(initial(), BARE)
