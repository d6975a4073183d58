"""A whole decoder against forty lines of NumPy that share nothing with it but the parameters."""

import jax
import numpy as np
import pytest

from tests.reference import decoder
from tfm.conformance.tiny import LENGTH, VOCAB, Tiny


TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, LENGTH))
SEGMENTS = np.array([[1] * 7 + [2] * 5, [0] * 2 + [1] * 8 + [0] * 2])
POSITIONS = np.array([[*range(7), *range(5)], [0, 0, *range(8), 0, 0]])


SHARED = dict(pattern=('own', 'other'), blocks=dict(own={}, other=dict(own_keys=False)))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
  'model',
  [
    dict(),
    dict(position='learned', kv_heads=4),
    dict(position='none', kv_heads=1),
    dict(feed_forward='swiglu', norm='rmsnorm'),
    dict(feed_forward='geglu', tie_embeddings=True, head_width=6, layers=3),
    dict(mixer='softmax(biases="qkv")', bias=False, norm='rmsnorm'),
    dict(mixer='softmax(biases="")'),
    dict(norm='layernorm(1e-5, bias=True)', bias=False),
    dict(canon='AC'),
    dict(value_residual='constant(0.3)', layers=3),
    dict(value_residual='gated', layers=3, canon='AB'),
    dict(SHARED, layers=4),
    dict(SHARED, layers=3, value_residual='gated', canon='BC', kernel='chunked(queries=4, keys=5)'),
    dict(canon='BD', feed_forward='swiglu', mixer='softmax(value_width=3)'),
  ],
  ids=str,
)
def test_logits(model):
  tiny = Tiny(scan=False, **model)
  logits, _ = tiny(TOKENS, POSITIONS, SEGMENTS)
  params = jax.tree.map(lambda x: np.asarray(x, np.float64), tiny.params)
  expected = decoder.forward(
    params,
    TOKENS,
    POSITIONS,
    SEGMENTS,
    heads_per_key=4 // model.get('kv_heads', 2),
    position=model.get('position', 'rope'),
    feed_forward=model.get('feed_forward', 'gelu'),
    share=0.3 if '0.3' in model.get('value_residual', '') else None,
  )
  # The logits of padding are not used, but here they are compared too.
  np.testing.assert_allclose(logits, expected[..., :VOCAB], rtol=5e-5, atol=5e-5)
