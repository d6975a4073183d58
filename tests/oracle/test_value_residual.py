"""Value residuals are those of x-transformers (PyTorch)."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
library = pytest.importorskip('x_transformers.x_transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402

from tfm.config.assemble import Experiment  # noqa: E402
from tfm.conformance.tiny import config  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402


D, H, C, L = 16, 4, 4, 3


@pytest.mark.parametrize('text', ['constant', 'gated'])
def test_three_layers(text, record_difference):
  theirs = library.Decoder(
    dim=D,
    depth=L,
    heads=H,
    attn_dim_head=C,
    custom_layers=('a',) * L,
    add_value_residual=True,
    learned_value_residual_mix=text == 'gated',
  ).eval()
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in theirs.parameters():
      parameter.copy_(0.5 * torch.randn_like(parameter))
  x = np.random.default_rng(0).standard_normal((2, 7, D)).astype(np.float32)
  stack = (
    Experiment(
      config(
        layers=L,
        kv_heads=H,
        scan=False,
        position='none',
        bias=False,
        feed_forward='none',
        value_residual=text,
      )
    )
    .build_model(20)
    .stack()
  )
  params = {f'layers_{i}': {'block_0': block(theirs.layers[i])} for i in range(L)}
  if text == 'gated':  # theirs has no gate in the first layer, where ours has no effect
    params['layers_0']['block_0']['value_residual'] = params['layers_1']['block_0']['value_residual']
  ours, _ = stack.apply({'params': params}, jnp.asarray(x), None, Context.contiguous(x[..., 0]), None)
  with torch.no_grad():
    expected = theirs(torch.tensor(x)).numpy()
  final = {'params': {'scale': 1 + theirs.final_norm.gamma.detach().numpy()}}
  ours = Experiment(config(bias=False)).build_model(20).norm().apply(final, ours)
  np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
  record_difference('model/value_residual', 'x-transformers', ours, expected)


def block(layer):
  """The parameters of one of our blocks, of one of their layers."""
  norms, attention, _ = layer
  w = {name: value.numpy() for name, value in attention.state_dict().items()}
  mixer = {name: dict(kernel=w[f'to_{name}.weight'].T.reshape(D, H, C)) for name in 'qkv'}
  mixer['out'] = dict(kernel=w['to_out.weight'].T.reshape(H, C, D))
  params = dict(mixer=mixer, mixer_norm=dict(scale=1 + norms[0].gamma.detach().numpy()))
  if 'to_value_residual_mix.0.weight' in w:
    gate = dict(kernel=w['to_value_residual_mix.0.weight'].T, bias=w['to_value_residual_mix.0.bias'])
    params['value_residual'] = dict(gate=gate)
  return params
