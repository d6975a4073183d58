"""A layer that attends to the keys and values of an earlier one is Gemma 3n's, on the same weights."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402
from transformers import Gemma3nTextConfig  # noqa: E402
from transformers.models.gemma3n import modeling_gemma3n as gemma3n  # noqa: E402

from tfm.config.assemble import Experiment  # noqa: E402
from tfm.config.overlay import complete  # noqa: E402
from tfm.config.resolve import resolve_config  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402
from tfm.models.stream import Stream  # noqa: E402


B, T, D, H, K, C, THETA = 2, 17, 32, 4, 2, 8, 500.0
X = np.random.default_rng(0).standard_normal((2, B, T, D)).astype(np.float32)


def run_published():
  """(weights, output) of a layer whose keys a later one reads, and of that one, for other inputs."""
  config = Gemma3nTextConfig(
    hidden_size=D,
    num_attention_heads=H,
    num_key_value_heads=K,
    head_dim=C,
    num_hidden_layers=2,
    num_kv_shared_layers=1,
    layer_types=['full_attention'] * 2,
    intermediate_size=[D] * 2,
    activation_sparsity_pattern=[0.0] * 2,
    attn_implementation='eager',
  )
  assert config.kv_sharing_modes == ['store', 'reuse']
  waves = THETA ** (-torch.arange(0, C, 2) / C) * torch.arange(T)[:, None]
  angles = torch.cat([waves, waves], -1)[None]
  ahead, shared = torch.full((1, 1, T, T), float('-inf')).triu(1), {}
  for i in range(2):
    torch.manual_seed(i)
    layer = gemma3n.Gemma3nTextAttention(config, i)
    layer.v_norm = torch.nn.Identity()
    with torch.no_grad():
      for parameter in layer.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.3)
      y, _ = layer(torch.tensor(X[i]), (angles.cos(), angles.sin()), ahead, shared_kv_states=shared)
    yield {name: value.numpy() for name, value in layer.state_dict().items()}, y.numpy()


def test_shared_keys_are_those_of_gemma3n(record_difference):
  model = dict(
    layers=2,
    width=D,
    heads=H,
    kv_heads=K,
    head_width=C,
    mixer='softmax(qk_norm="rmsnorm")',
    score='dot(scale=1.0)',
    position=f'rope(theta={THETA})',
    pattern=('own', 'other'),
    blocks=dict(own={}, other=dict(own_keys=False)),
  )
  config = resolve_config(complete(dict(data=dict(length=T), model=model)))
  stack = Experiment(config).build_model(8).stack
  context, keys = Context.contiguous(jnp.asarray(X[0, ..., 0])), None
  for i, (w, theirs) in enumerate(run_published()):
    heads = dict(q=H, k=K, v=K)
    params = {
      letter: {'kernel': w[f'{letter}_proj.weight'].T.reshape(D, n, C)}
      for letter, n in heads.items()
      if f'{letter}_proj.weight' in w
    }
    params |= {f'{x}_norm': {'scale': w[f'{x}_norm.weight']} for x in 'qk' if f'{x}_norm.weight' in w}
    params['out'] = {'kernel': w['o_proj.weight'].T.reshape(H, C, D)}
    # The block with the mixer alone: no norm before it, no residual stream beside it.
    block = stack.args[0][i]().clone(
      feed_forward=None, residual=lambda block, branches, x, context: branches['mixer'](x)
    )
    stream = Stream.start(jnp.asarray(X[i]), None, keys)
    stream, _ = block.apply({'params': {'mixer': params}}, stream, None, context, None)
    keys, ours = stream.keys, stream.x
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
    record_difference('model/own_keys', 'transformers', ours, theirs)
