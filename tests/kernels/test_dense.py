"""The attention oracle against its own formulas, and the dot score against the oracle."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

import tfm.scores
from tfm import spec
from tfm.conformance import attention
from tfm.kernels.protocol import AttentionInputs
from tfm.scores.protocol import Score


DRAW = np.random.default_rng(0)
Q, K, V = (DRAW.standard_normal((2, 5, heads, 4)) for heads in (4, 2, 2))


@pytest.mark.parametrize('text, scale', [('dot', None), ('dot(scale=0.3)', 0.3), ('dot(1.0)', 1.0)])
def test_dot_is_the_formula(text, scale):
  score = spec.factory(text, tfm.scores, Score, head_width=4)().apply({})
  q = Q.reshape(2, 5, 2, 2, 4).transpose(0, 2, 3, 1, 4)
  logits = score(jnp.asarray(q, jnp.float32), jnp.asarray(K.swapaxes(1, 2), jnp.float32))
  expected = attention.dot_logits(Q, K, scale)
  np.testing.assert_allclose(logits.reshape(2, 4, 5, 5), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('kind', ['softmax', 'sinks', 'sigmoid'])
def test_oracle_gradients_equal_finite_differences(kind):
  visible = np.tril(np.ones((5, 5), bool))[None].repeat(2, 0)
  visible[1, 0] = False  # a row without visible keys
  g, sinks = DRAW.standard_normal((2, 5, 4, 4)), DRAW.standard_normal(4)

  def weights(q, k, sinks):
    logits = attention.dot_logits(q, k)
    if kind == 'sigmoid':
      return attention.sigmoid_weights(logits, visible, -0.7)
    return attention.weights(logits, visible, sinks if kind == 'sinks' else None)

  def loss(q, k, v, sinks):
    return (attention.attend(weights(q, k, sinks), v) * g).sum()

  p = weights(Q, K, sinks)
  d_p, d_v = attention.weight_gradients(p, V, g)
  d_logits, d_sinks = (d_p * p * (1 - p), None) if kind == 'sigmoid' else attention.softmax_gradients(p, d_p)
  d_q, d_k = attention.dot_gradients(Q, K, d_logits)
  for i, gradient in enumerate((d_q, d_k, d_v, d_sinks)[: 4 if kind == 'sinks' else 3]):
    direction = DRAW.standard_normal(gradient.shape)
    arguments = [
      [x + sign * 1e-5 * direction if j == i else x for j, x in enumerate((Q, K, V, sinks))]
      for sign in (1, -1)
    ]
    slope = (loss(*arguments[0]) - loss(*arguments[1])) / 2e-5
    np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-6)


def test_a_bias_of_another_shape_is_refused_with_both():
  q, where = jnp.asarray(Q, jnp.float32), jnp.ones((2, 5), jnp.int32)
  names = 'q_positions', 'k_positions', 'q_segments', 'k_segments'
  score = spec.factory('dot', tfm.scores, Score, head_width=4)().apply({})
  bias = Partial(lambda q, k, *locations: jnp.zeros((2, 4, 5, 5)))
  inputs = AttentionInputs(score=score, bias=bias, mask=None, **dict.fromkeys(names, where))
  with pytest.raises(ValueError, match=r'the shape \(2, 4, 5, 5\), and the logits .* have \(2, 2, 2, 5, 5\)'):
    inputs.logits(q.reshape(2, 5, 2, 2, 4).transpose(0, 2, 3, 1, 4), q[:, :, :2].swapaxes(1, 2), None, None)
