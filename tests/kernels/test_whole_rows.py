"""A bias that needs all keys of a row at once: blockwise kernels reject it, and auto uses dense."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from tests.kernels.test_chunked import arrays, attention_inputs, kernel
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.mixers.protocol import Context
from tfm.positions.alibi import Alibi


T = 512


@Partial
def contextual(q, k, q_locations, k_locations):
  """The gates between query and key, summed from the last key backwards (Golovneva et al. 2024, CoPE)."""
  gates = jax.nn.sigmoid(jnp.einsum('BKGTC,BKSC->BKGTS', q, k, preferred_element_type=jnp.float32))
  return -0.1 * jnp.flip(jnp.cumsum(jnp.flip(gates, -1), -1), -1)


@pytest.mark.slow
def test_dense_and_auto_agree_and_blockwise_kernels_reject_it():
  inputs = attention_inputs(T=T) | dict(bias=contextual, has_blockwise_bias=False)
  expected = kernel('dense')(*arrays(T), **inputs)
  np.testing.assert_array_equal(kernel('auto')(*arrays(T), **inputs), expected)
  for text in ('chunked(keys=128)', 'ring(keys=128)'):
    name = text.partition('(')[0]
    with pytest.raises(
      ValueError, match=f"kernel='{name}' .* needs all keys of a row at once; use kernel='dense'"
    ):
      kernel(text)(*arrays(T), **inputs)
    # What the declaration prevents: another block size would be another function.
    wrong = kernel(text)(*arrays(T), **inputs | dict(has_blockwise_bias=True))
    assert np.abs(np.asarray(wrong) - expected).max() > 1e-3


@pytest.mark.parametrize('mixer', ['softmax', 'longformer(2)', 'latent(rank=8, rope_width=4)'])
def test_mixers_pass_the_declaration_on(mixer, monkeypatch):
  monkeypatch.setattr(Alibi, 'has_blockwise_bias', False)
  fields = dict(layers=1, width=16, heads=2, mixer=mixer, position='alibi', kernel='chunked')
  model = Experiment(resolve_config(complete(dict(model=fields)))).build_model(10)
  tokens = jnp.zeros((1, 8), jnp.int32)
  with pytest.raises(ValueError, match='needs all keys of a row at once'):
    jax.eval_shape(model.init, jax.random.key(0), tokens, Context.contiguous(tokens))
