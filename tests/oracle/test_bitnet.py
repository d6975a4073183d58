"""BitNet's linear layer equals the published one, in transformers."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
bitnet = pytest.importorskip(
  'transformers.integrations.bitnet', reason='needs the extra [oracle]: make oracle'
)

import jax  # noqa: E402

from tfm.layers import quantization  # noqa: E402


def test_the_product_and_its_gradients_equal_the_published_ones(record_difference):
  draw = np.random.default_rng(0)
  x, w, dy = (draw.standard_normal(shape).astype(np.float32) for shape in ((3, 5, 32), (32, 6), (3, 5, 6)))
  layer = bitnet.AutoBitLinear(32, 6, bias=False, online_quant=True)
  layer.weight.data = torch.tensor(w.T)
  inputs = torch.tensor(x, requires_grad=True)
  expected = layer(inputs)
  expected.backward(torch.tensor(dy))
  y, pull = jax.vjp(lambda x, w: quantization.bitnet().multiply(x, w, None), x, w)
  for a, b in zip((y, *pull(dy)), (expected, inputs.grad, layer.weight.grad.T), strict=True):
    np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-4, atol=1e-5)
  record_difference('model/quantization', 'transformers', y, expected.detach().numpy())
