"""Latent attention is DeepSeek-V2's, as transformers has it, under the same weights, in both forms."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402
from transformers import DeepseekV2Config  # noqa: E402
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as published  # noqa: E402

from tfm.config import assemble  # noqa: E402
from tfm.config.assemble import Experiment  # noqa: E402
from tfm.config.overlay import complete  # noqa: E402
from tfm.config.resolve import resolve_config  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402


B, T, D, H, C, RANK, ROPE, THETA = 2, 17, 32, 4, 6, 10, 8, 500.0
X = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)


def attention(query_rank, bias):
  """The module with random weights, norms' too, and its output for X under a causal mask."""
  config = DeepseekV2Config(
    hidden_size=D,
    num_attention_heads=H,
    num_key_value_heads=H,
    kv_lora_rank=RANK,
    q_lora_rank=query_rank or None,
    qk_rope_head_dim=ROPE,
    qk_nope_head_dim=C,
    v_head_dim=C,
    head_dim=ROPE,
    attention_bias=bias,
    max_position_embeddings=64,
    rope_parameters=dict(rope_type='default', rope_theta=THETA),
    attn_implementation='eager',
  )
  torch.manual_seed(0)
  module = published.DeepseekV2Attention(config, layer_idx=0).eval()
  x, positions = torch.tensor(X), torch.arange(T)[None]
  ahead = torch.full((1, 1, T, T), float('-inf')).triu(1)
  with torch.no_grad():
    for name, parameter in module.named_parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if 'layernorm' in name else 0.0))
    y = module(x, ahead, position_embeddings=published.DeepseekV2RotaryEmbedding(config)(x, positions))[0]
  return {name: value.numpy() for name, value in module.state_dict().items()}, y.numpy()


def parameters(w):
  """Ours from theirs."""

  def linear(name, shape=None):
    kernel = w[f'{name}.weight'].T
    kernel = {'kernel': kernel if shape is None else kernel.reshape(shape)}
    return kernel | ({'bias': w[f'{name}.bias']} if f'{name}.bias' in w else {})

  up = w['kv_b_proj.weight'].T.reshape(RANK, H, 2 * C)
  params = dict(
    down=linear('kv_a_proj_with_mqa'),
    norm=dict(scale=w['kv_a_layernorm.weight']),
    k_up=up[..., :C],
    v_up=up[..., C:],
    out=linear('o_proj', (H, C, D)),
  )
  if 'q_proj.weight' in w:
    return params | dict(q=linear('q_proj', (D, H, C + ROPE)))
  return params | dict(
    q_down=linear('q_a_proj'),
    q_norm=dict(scale=w['q_a_layernorm.weight']),
    q=linear('q_b_proj', (-1, H, C + ROPE)),
  )


@pytest.mark.parametrize('query_rank, bias', [(0, False), (12, False), (12, True)])
def test_deepseek_v2(query_rank, bias, record_difference):
  w, theirs = attention(query_rank, bias)
  config = resolve_config(
    complete(
      dict(
        data=dict(length=T),
        model=dict(
          width=D,
          heads=H,
          head_width=C,
          bias=bias,
          position=f'rope({THETA}, interleaved=True)',
          mixer=f'latent(rank={RANK}, rope_width={ROPE}, query_rank={query_rank})',
        ),
      )
    )
  )
  mixer = assemble.build_block(Experiment(config), 'model', config.model, causal=True)().mixer()
  params, context = {'params': parameters(w)}, Context.contiguous(jnp.asarray(X[..., 0]))
  whole, _ = mixer.apply(params, jnp.asarray(X), None, context, None)
  np.testing.assert_allclose(whole, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
  record_difference('mixer/latent', 'transformers', whole, theirs)
  read, _ = mixer.apply(params, jnp.asarray(X), None, context, mixer.init_cache(B, T + 3))
  np.testing.assert_allclose(read, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
