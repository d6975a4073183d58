"""The mixer under its paper's mask is transformers' LongformerSelfAttention, padded rows too."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402
from transformers import LongformerConfig  # noqa: E402
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention  # noqa: E402

from tfm.config import assemble  # noqa: E402
from tfm.config.assemble import Experiment  # noqa: E402
from tfm.config.overlay import complete  # noqa: E402
from tfm.config.resolve import resolve_config  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402


B, T, D, H, WINDOW = 2, 24, 16, 4, 4  # on one side; the published window is both, and divides the length
X = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)
SEGMENTS = np.array([[1] * T, [1] * 19 + [0] * 5])
NAMES = {'q': 'query', 'k': 'key', 'v': 'value'}


def published(n):
  """The weights, random biases included, and the output before the projection out, with n global tokens."""
  config = LongformerConfig(
    hidden_size=D, num_attention_heads=H, attention_window=[2 * WINDOW], num_hidden_layers=1
  )
  torch.manual_seed(0)
  module = LongformerSelfAttention(config, layer_id=0).eval()
  seen = torch.tensor(SEGMENTS)
  # Below 0: padding; above: global, as LongformerModel hands it on.
  attention_mask = torch.where(seen == 0, -10000.0, 0.0)
  attention_mask[:, :n] = 10000.0
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.4)
    y = module(
      torch.tensor(X),
      attention_mask,
      is_index_masked=attention_mask < 0,
      is_index_global_attn=attention_mask > 0,
      is_global_attn=True,
    )[0]
  return {name: value.numpy() for name, value in module.state_dict().items()}, y.numpy()


@pytest.mark.parametrize('layout', ['contiguous', 'arbitrary'])
@pytest.mark.parametrize('n', [1, 3])
def test_longformer_self_attention(n, layout, record_difference):
  w, theirs = published(n)
  config = resolve_config(
    complete(
      dict(
        data=dict(length=T),
        model=dict(
          width=D,
          heads=H,
          bias=True,
          position='none',
          mixer=f'longformer({n})',
          mask=f'longformer({WINDOW}, {n})',
        ),
      )
    )
  )
  mixer = assemble.build_block(Experiment(config), 'model', config.model, causal=False)().mixer()
  heads = H, D // H
  params = {
    f'{ours}{kind}': dict(
      kernel=w[f'{name}{kind}.weight'].T.reshape(D, *heads), bias=w[f'{name}{kind}.bias'].reshape(heads)
    )
    for ours, name in NAMES.items()
    for kind in ('', '_global')
  }
  # Theirs ends before the projection out: an identity shows ours.
  params['out'] = dict(kernel=np.eye(D, dtype=np.float32).reshape(*heads, D), bias=np.zeros(D, np.float32))
  positions = np.tile(np.arange(T), (B, 1))
  context = Context(jnp.asarray(positions), jnp.asarray(SEGMENTS), layout=layout)
  y, _ = mixer.apply({'params': params}, jnp.asarray(X), None, context, None)
  real = SEGMENTS > 0
  np.testing.assert_allclose(y[real], theirs[real], rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
  record_difference('mixer/longformer', 'transformers', y[real], theirs[real])
