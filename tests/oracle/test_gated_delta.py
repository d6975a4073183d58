"""The gated delta rule and its layer are those of Qwen3-Next, in transformers (PyTorch)."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
published = pytest.importorskip(
  'transformers.models.qwen3_next.modeling_qwen3_next', reason='needs the extra [oracle]: make oracle'
)

import jax.numpy as jnp  # noqa: E402
from transformers import Qwen3NextConfig  # noqa: E402

import tfm.mixers  # noqa: E402
from tfm import spec  # noqa: E402
from tfm.layers.initializer import normal  # noqa: E402
from tfm.mixers.gated_delta import DeltaRows, delta_rule, unit  # noqa: E402
from tfm.mixers.protocol import Context, Mixer  # noqa: E402


B, T, D, H, K, C, TAPS = 2, 75, 24, 4, 2, 6, 4
DRAW = np.random.default_rng(0)


def assert_equal(ours, theirs):
  theirs = theirs.detach().numpy()
  np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize('rule', ['torch_chunk_gated_delta_rule', 'torch_recurrent_gated_delta_rule'])
@pytest.mark.parametrize('chunk', [16, 64])
def test_the_rule(rule, chunk):
  """75 tokens, which fill no chunk; groups of value heads; from a state, to a state."""
  q, k, v = (DRAW.standard_normal((B, T, heads, C)).astype(np.float32) for heads in (K, K, H))
  log_alpha = -DRAW.exponential(size=(B, T, H)).astype(np.float32)
  beta = DRAW.uniform(size=(B, T, H)).astype(np.float32)
  state = DRAW.standard_normal((B, H, C, C)).astype(np.float32)
  y, last = getattr(published, rule)(
    *map(torch.tensor, (q, k, v)),
    g=torch.tensor(log_alpha),
    beta=torch.tensor(beta),
    initial_state=torch.tensor(state),
    output_final_state=True,
    use_qk_l2norm_in_kernel=True,
  )
  none_first = jnp.zeros((B, T), bool)  # the document is that of the state
  q, k = unit(jnp.asarray(q)) * C**-0.5, unit(jnp.asarray(k))
  ours, ours_last = delta_rule(DeltaRows(q, k, jnp.asarray(v), log_alpha, beta, none_first), state, chunk)
  assert_equal(ours, y)
  assert_equal(ours_last, last)


@pytest.mark.parametrize('kv_heads', [K, H])
def test_the_layer(kv_heads, record_difference):
  theirs = published.Qwen3NextGatedDeltaNet(
    Qwen3NextConfig(
      hidden_size=D,
      linear_num_value_heads=H,
      linear_num_key_heads=kv_heads,
      linear_key_head_dim=C,
      linear_value_head_dim=C,
      linear_conv_kernel_dim=TAPS,
      hidden_act='silu',
      rms_norm_eps=1e-6,
      num_hidden_layers=1,
      layer_types=['linear_attention'],
    ),
    0,
  )
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in theirs.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if parameter.ndim == 1 else 0.0))
  w = {name: value.numpy() for name, value in theirs.state_dict().items()}

  # Theirs holds q, k, v and the gate z, or β and α, of each group of heads together.
  group = H // kv_heads
  qkvz = w['in_proj_qkvz.weight'].T.reshape(D, kv_heads, -1)
  q, k, v, z = np.split(qkvz, np.cumsum([C, C, group * C]), -1)
  beta, alpha = np.split(w['in_proj_ba.weight'].T.reshape(D, kv_heads, -1), 2, -1)
  taps = np.split(w['conv1d.weight'][:, 0].T, np.cumsum([kv_heads * C, kv_heads * C]), -1)
  params = {name: dict(kernel=y.reshape(D, -1, C)) for name, y in dict(q=q, k=k, v=v, gate=z).items()}
  params |= {f'{name}_convolution': dict(weight=y.reshape(TAPS, -1, C)) for name, y in zip('qkv', taps)}
  params |= dict(
    alpha=dict(kernel=alpha.reshape(D, H)),
    beta=dict(kernel=beta.reshape(D, H)),
    A_log=w['A_log'],
    dt_bias=w['dt_bias'],
    norm=dict(scale=w['norm.weight']),
    out=dict(kernel=w['out_proj.weight'].T.reshape(H, C, D)),
  )

  module = spec.factory(
    f'gated_delta(taps={TAPS})',
    tfm.mixers,
    Mixer,
    width=D,
    heads=H,
    kv_heads=kv_heads,
    head_width=C,
    bias=False,
    dropout=0.0,
    initializer=normal(),
    output_initializer=normal(),
    dtype=jnp.float32,
  )()
  x = DRAW.standard_normal((B, T, D)).astype(np.float32)
  ours, _ = module.apply({'params': params}, jnp.asarray(x), None, Context.contiguous(x[..., 0]), None)
  theirs = theirs(torch.tensor(x))
  assert_equal(ours, theirs)
  record_difference('mixer/gated_delta', 'transformers', ours, theirs.detach().numpy())
