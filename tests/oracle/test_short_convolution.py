"""The gated short convolution is that of LFM2, in transformers (PyTorch)."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
published = pytest.importorskip(
  'transformers.models.lfm2.modeling_lfm2', reason='needs the extra [oracle]: make oracle'
)

import jax.numpy as jnp  # noqa: E402
from transformers import Lfm2Config  # noqa: E402

from tests.mixers.test_attention_kinds import make_mixer  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402


B, T, D = 2, 9, 16


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('taps', [3, 4])
def test_the_layer(taps, bias, record_difference):
  theirs = published.Lfm2ShortConv(
    Lfm2Config(hidden_size=D, num_hidden_layers=1, layer_types=['conv'], conv_L_cache=taps, conv_bias=bias), 0
  )
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in theirs.parameters():
      parameter.copy_(0.5 * torch.randn_like(parameter))
  w = {name: value.numpy() for name, value in theirs.state_dict().items()}
  names = 'gate_before', 'gate_after', 'value'
  params = {name: dict(kernel=kernel.T) for name, kernel in zip(names, np.split(w['in_proj.weight'], 3))}
  params |= dict(out=dict(kernel=w['out_proj.weight'].T), convolution=dict(weight=w['conv.weight'][:, 0].T))
  if bias:
    for name, b in zip(names, np.split(w['in_proj.bias'], 3)):
      params[name]['bias'] = b
    params['out']['bias'], params['convolution']['bias'] = w['out_proj.bias'], w['conv.bias']
  x = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)
  mixer = make_mixer(f'short_convolution({taps})', bias=bias)
  y, _ = mixer.apply({'params': params}, jnp.asarray(x), None, Context.contiguous(x[..., 0]), None)
  with torch.no_grad():
    expected = theirs(torch.tensor(x)).numpy()
  np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
  record_difference('mixer/short_convolution', 'transformers', y, expected)
