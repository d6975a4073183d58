"""The embedding: lookup of tokens, and logits by the transposed table."""

import jax
import jax.numpy as jnp
import numpy as np

from tfm.layers.embedding import Embedding
from tfm.layers.initializer import normal


TABLE = np.random.default_rng(0).standard_normal((11, 4)).astype(np.float32)
TOKENS = jnp.array([[3, 0, 10], [7, 7, 1]])


def make_embedding(dtype=jnp.float32):
  return Embedding(11, 4, normal(), dtype), {'params': {'table': jnp.asarray(TABLE)}}


def test_lookup_by_token():
  layer, params = make_embedding()
  np.testing.assert_array_equal(layer.apply(params, TOKENS), TABLE[TOKENS])


def test_attend_multiplies_by_the_transposed_table():
  layer, params = make_embedding()
  x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3, 4)), jnp.float32)
  logits = layer.apply(params, x, method='attend')
  np.testing.assert_allclose(logits, np.asarray(x) @ TABLE.T, rtol=1e-5, atol=1e-6)


def test_logits_of_bfloat16_are_summed_in_float32():
  layer, params = make_embedding(jnp.bfloat16)
  assert layer.apply(params, TOKENS).dtype == jnp.bfloat16
  x = jnp.ones((2, 3, 4), jnp.bfloat16)
  logits = layer.apply(params, x, method='attend')
  assert logits.dtype == jnp.float32
  rounded = np.asarray(jnp.asarray(TABLE, jnp.bfloat16).astype(jnp.float32))
  np.testing.assert_allclose(logits[0, 0], rounded.sum(-1), rtol=1e-6)


def test_narrow_table_is_projected_in_and_out():
  layer = Embedding(11, 6, normal(), jnp.float32, 0.5, table_width=4, projection=normal())
  draw = np.random.default_rng(2)
  project_in, project_out = (
    draw.standard_normal((4, 6)).astype(np.float32),
    draw.standard_normal((6, 4)).astype(np.float32),
  )
  params = {
    'params': {
      'table': jnp.asarray(TABLE),
      'project_in': {'kernel': project_in},
      'project_out': {'kernel': project_out},
    }
  }
  np.testing.assert_allclose(
    layer.apply(params, TOKENS), 0.5 * TABLE[TOKENS] @ project_in, rtol=1e-5, atol=1e-6
  )
  x = draw.standard_normal((2, 3, 6)).astype(np.float32)
  np.testing.assert_allclose(
    layer.apply(params, x, method='attend'), x @ project_out @ TABLE.T, rtol=1e-5, atol=1e-5
  )
  # Without `attend` there is no projection out.
  boxes = layer.init(jax.random.key(0), TOKENS)['params']
  assert set(boxes) == {'table', 'project_in'} and boxes['project_in']['kernel'].names == ('embed', 'mlp')


def test_axes():
  box = Embedding(11, 4, normal(), jnp.float32).init(jax.random.key(0), TOKENS)['params']['table']
  assert box.names == ('vocab', 'embed') and box.value.shape == (11, 4) and box.value.dtype == jnp.float32
