"""Weights in int8 equal those of torch.ao."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')

from torch.ao.quantization import MinMaxObserver, PerChannelMinMaxObserver  # noqa: E402

from tfm.layers.quantization import int8  # noqa: E402


def test_integers_and_scales_of_weights_equal_those_of_symmetric_channels():
  w = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
  observer = PerChannelMinMaxObserver(ch_axis=0, dtype=torch.qint8, qscheme=torch.per_channel_symmetric)
  observer(torch.tensor(w.T))
  scale, zero = observer.calculate_qparams()
  expected = torch.quantize_per_channel(torch.tensor(w.T), scale, zero, 0, torch.qint8)
  integers, scales = int8().quantize(w)
  np.testing.assert_allclose(scales[0], scale, rtol=1e-6)
  # The greatest |w| of a column lies half-way between 127 and 128, and rounds to either.
  differences = np.asarray(integers, int) - expected.int_repr().numpy().T
  ties = np.abs(w) == np.abs(w).max(0)
  assert not differences[~ties].any() and np.abs(differences).max() <= 1


def test_calibrated_inputs_equal_those_of_a_symmetric_observer():
  draw = np.random.default_rng(0)
  seen, x, w = (draw.standard_normal(shape).astype(np.float32) for shape in ((9, 64), (5, 64), (64, 48)))
  observer = MinMaxObserver(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
  observer(torch.tensor(seen))
  scale, zero = observer.calculate_qparams()
  quantization = int8(calibrated=True, stored=True)
  input_scale = quantization.input_scale(np.abs(seen).max())
  np.testing.assert_allclose(input_scale, scale.item(), rtol=1e-6)
  inputs = torch.quantize_per_tensor(torch.tensor(x), scale.item(), int(zero), torch.qint8).dequantize()
  integers, scales = quantization.quantize(w)
  y = quantization.multiply(x, integers, scales, input_scale)
  np.testing.assert_allclose(y, inputs.numpy() @ np.asarray(integers * scales), rtol=1e-5, atol=1e-5)
