"""Feed-forward layers, norms and residuals equal published ones, in transformers and libraries of PyTorch."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')
x_transformers = pytest.importorskip(
  'x_transformers.x_transformers', reason='needs the extra [oracle]: make oracle'
)
hyper = pytest.importorskip('hyper_connections', reason='needs the extra [oracle]: make oracle')

import functools  # noqa: E402

import flax.linen as nn  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from transformers.activations import ACT2FN  # noqa: E402
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as deepseek_v4  # noqa: E402
from transformers.models.gemma2 import modeling_gemma2 as gemma2  # noqa: E402
from transformers.models.olmo2 import modeling_olmo2 as olmo2  # noqa: E402

from tfm.layers.activation import ACTIVATIONS  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402
from tfm.models.block import Block  # noqa: E402
from tfm.norms.dyt import DynamicTanh  # noqa: E402
from tfm.norms.rmsnorm import RMSNorm  # noqa: E402
from tfm.residuals.hyper_connections import HyperConnections  # noqa: E402
from tfm.residuals.manifold_hyper_connections import ManifoldHyperConnections  # noqa: E402
from tfm.residuals.sequential import Sequential  # noqa: E402


DRAW = np.random.default_rng(0)
X = 2 * DRAW.standard_normal((2, 5, 8)).astype(np.float32)


def weights(module):
  """Random numbers for all parameters of a module, as numpy."""
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.5)
  return {name: value.numpy() for name, value in module.eval().state_dict().items()}


def run(module, *arguments):
  with torch.no_grad():
    return module(*arguments).numpy()


def test_relu_squared(record_difference):
  for library, published in (
    ('transformers', ACT2FN['relu2']),
    ('x-transformers', x_transformers.ReluSquared()),
  ):
    ours, theirs = ACTIVATIONS['relu_squared'](X), run(published, torch.tensor(X))
    np.testing.assert_array_equal(ours, theirs)
    record_difference('feed_forward/relu_squared', library, ours, theirs)


def test_dyt(record_difference):
  published = x_transformers.DynamicTanh(8)
  w = weights(published)
  params = dict(input_scale=w['pre_tanh_scale'], scale=w['gamma'], bias=w['beta'])
  ours = DynamicTanh().apply({'params': params}, jnp.asarray(X))
  theirs = run(published, torch.tensor(X))
  np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
  record_difference('norm/dyt', 'x-transformers', ours, theirs)


class Mix(nn.Module):
  """sin(2 x)."""

  def __call__(self, x, memory, context, cache):
    return jnp.sin(2 * x), None


class Feed(nn.Module):
  """cos(3 x)."""

  def __call__(self, x, valid):
    return jnp.cos(3 * x)


class PublishedMix(torch.nn.Module):
  def forward(self, hidden_states, **kwargs):
    return torch.sin(2 * hidden_states), None


class PublishedFeed(torch.nn.Module):
  def forward(self, x):
    return torch.cos(3 * x)


SMALL = dict(
  hidden_size=8, intermediate_size=8, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1
)
AFTER = dict(
  mixer_norm_after='post_attention_layernorm', feed_forward_norm_after='post_feedforward_layernorm'
)
BEFORE = dict(mixer_norm='input_layernorm', feed_forward_norm='pre_feedforward_layernorm')


@pytest.mark.parametrize(
  'placement, layer, config, norms, offset',
  [
    ('res_post', olmo2.Olmo2DecoderLayer, transformers.Olmo2Config, AFTER, 0),
    ('sandwich', gemma2.Gemma2DecoderLayer, transformers.Gemma2Config, AFTER | BEFORE, 1),
  ],
  ids=['olmo2', 'gemma2'],
)
def test_norm_placements(placement, layer, config, norms, offset, record_difference):
  """Blocks of the same two functions; a norm of Gemma's adds one to its weights."""
  published = layer(config(**SMALL, head_dim=4, rms_norm_eps=1e-6), 0)
  w = weights(published)
  published.self_attn, published.mlp = PublishedMix(), PublishedFeed()
  params = {name: dict(scale=offset + w[f'{theirs}.weight']) for name, theirs in norms.items()}
  x = jnp.asarray(X)
  context = Context.contiguous(jnp.zeros(x.shape[:2], jnp.int32))
  block = Block(Mix, Feed, RMSNorm, placement, Sequential(), 0.0)
  ours, _ = block.apply({'params': params}, x, None, context, None)
  theirs = run(published, torch.tensor(X))
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6)
  record_difference('residual/sequential', 'transformers', ours, theirs)


def test_hyper_connections(record_difference):
  """Blocks of the same two functions, with norms, over four streams, which the library keeps in rows. Its
  versions from 0.1.15 on add to the streams without mixing them.
  """
  x = DRAW.standard_normal((2, 5, 4, 8)).astype(np.float32)
  theirs, params = torch.tensor(x.transpose(0, 2, 1, 3).reshape(8, 5, 8)), {}
  norm = functools.partial(RMSNorm, epsilon=1e-12)
  for name, f, factor in (('mixer', torch.sin, 2), ('feed_forward', torch.cos, 3)):
    published = hyper.HyperConnections(4, dim=8)
    w = weights(published)
    read, mix = w['dynamic_alpha_fn'][:, :1], w['dynamic_alpha_fn'][:, 1:]
    params[f'{name}_connection'] = dict(
      norm=dict(scale=1 + w['norm.gamma']),
      read_kernel=read,
      mix_kernel=mix,
      write_kernel=w['dynamic_beta_fn'][:, None],
      read_bias=w['static_alpha'][:, :1],
      mix_bias=w['static_alpha'][:, 1:] - np.eye(4, dtype=np.float32),
      write_bias=w['static_beta'][:, None] - 1,
      read_scale=w['dynamic_alpha_scale'],
      mix_scale=w['dynamic_alpha_scale'],
      write_scale=w['dynamic_beta_scale'],
    )
    params[f'{name}_norm'] = dict(scale=np.ones(8, np.float32))
    with torch.no_grad():
      y, add = published(theirs)
      theirs = add(f(factor * torch.nn.functional.normalize(y, dim=-1) * 8**0.5))
  theirs = theirs.reshape(2, 4, 5, 8).transpose(1, 2).numpy()
  context = Context.contiguous(jnp.zeros((2, 5), jnp.int32))
  block = Block(Mix, Feed, norm, 'pre', HyperConnections(), 0.0)
  ours, _ = block.apply({'params': params}, jnp.asarray(x), None, context, None)
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-6 * np.abs(theirs).max())
  record_difference('residual/hyper_connections', 'hyper-connections', ours, theirs)


def test_manifold_hyper_connections(record_difference):
  """Blocks of the same two functions, with norms, over four streams."""
  config = transformers.DeepseekV4Config(hidden_size=8, hc_mult=4, hc_sinkhorn_iters=20)
  theirs, params, norm = torch.tensor(DRAW.standard_normal((2, 5, 4, 8)).astype(np.float32)), {}, RMSNorm()
  x = jnp.asarray(theirs.numpy())
  for name, f in (('mixer', torch.sin), ('feed_forward', torch.cos)):
    published = deepseek_v4.DeepseekV4HyperConnection(config)
    w = weights(published)
    sizes, parts = [4, 4, 16], {}
    for i, part in enumerate(('read', 'write', 'mix')):
      rows = slice(sum(sizes[:i]), sum(sizes[: i + 1]))
      parts[f'{part}_kernel'] = w['fn'][rows].T.reshape(4, 8, sizes[i])
      parts[f'{part}_bias'], parts[f'{part}_scale'] = w['base'][rows], w['scale'][i]
    params |= {f'{name}_connection': parts, f'{name}_norm': dict(scale=np.ones(8, np.float32))}
    with torch.no_grad():
      write, mix, y = published(theirs)
      y = f(
        (2 if name == 'mixer' else 3)
        * torch.tensor(np.asarray(norm.apply({'params': params[f'{name}_norm']}, y.numpy())))
      )
      theirs = write[..., None] * y[..., None, :] + mix.transpose(-1, -2) @ theirs
  context = Context.contiguous(jnp.zeros((2, 5), jnp.int32))
  block = Block(Mix, Feed, RMSNorm, 'pre', ManifoldHyperConnections(), 0.0)
  ours, _ = block.apply({'params': params}, x, None, context, None)
  np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=5e-6)
  record_difference('residual/manifold_hyper_connections', 'transformers', ours, theirs.numpy())
