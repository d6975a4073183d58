"""Kinds of attention are those of published models and libraries in PyTorch, on the same weights."""

import functools
import importlib.util
import pathlib

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402
from transformers import DiffLlamaConfig, NystromformerConfig, Qwen3NextConfig  # noqa: E402
from transformers.models.diffllama import modeling_diffllama as diffllama  # noqa: E402
from transformers.models.nystromformer import modeling_nystromformer as nystromformer  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next  # noqa: E402

from tfm.config import assemble  # noqa: E402
from tfm.config.assemble import Experiment  # noqa: E402
from tfm.config.overlay import complete  # noqa: E402
from tfm.config.resolve import resolve_config  # noqa: E402
from tfm.mixers.protocol import Context  # noqa: E402


B, T, D, H, C, THETA = 2, 17, 32, 4, 8, 500.0
X = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)


def run_published(module, rotary):
  """The weights of an attention layer, random ones, and its output for X under a causal mask."""
  torch.manual_seed(0)
  x, positions = torch.tensor(X), torch.arange(T)[None]
  ahead = torch.full((1, 1, T, T), float('-inf')).triu(1)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.3)
    y = module(x, attention_mask=ahead, position_embeddings=rotary(x, positions))[0]
  return {name: value.numpy() for name, value in module.state_dict().items()}, y.numpy()


def linear(w, name, *shape):
  """Our parameters of a projection, from theirs."""
  kernel = {'kernel': w[f'{name}.weight'].T.reshape(shape)}
  bias = shape[1:] if len(shape) == 3 and shape[0] == D else shape[-1:]
  return kernel | ({'bias': w[f'{name}.bias'].reshape(bias)} if f'{name}.bias' in w else {})


@pytest.fixture
def assert_equal(record_difference):
  """Fails where rows, whole or read through a cache, differ from those of a library."""
  return functools.partial(compare, record_difference)


def compare(record, variant, library, params, theirs, **model):
  """The mixer of a model with these fields, on our names of their weights."""
  model = dict(width=D, heads=H, head_width=C) | model
  config = resolve_config(complete(dict(data=dict(length=T), model=model)))
  mixer = assemble.build_block(Experiment(config), 'model', config.model, causal=True)().mixer()
  params, x, context = {'params': params}, jnp.asarray(X), Context.contiguous(jnp.asarray(X[..., 0]))
  for cache in (None, mixer.init_cache(B, T + 3)):
    y, _ = mixer.apply(params, x, None, context, cache)
    np.testing.assert_allclose(y, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
    record(variant, library, y, theirs)


@pytest.mark.parametrize('kv_heads, bias', [(H, False), (2, True)])
def test_gated_is_qwen3_next(kv_heads, bias, assert_equal):
  config = Qwen3NextConfig(
    hidden_size=D,
    num_attention_heads=H,
    num_key_value_heads=kv_heads,
    head_dim=C,
    attention_bias=bias,
    rms_norm_eps=1e-6,
    max_position_embeddings=64,
    rope_parameters=dict(rope_type='default', rope_theta=THETA, partial_rotary_factor=0.5),
    attn_implementation='eager',
  )
  rotary = qwen3_next.Qwen3NextRotaryEmbedding(config)
  w, theirs = run_published(qwen3_next.Qwen3NextAttention(config, 0).eval(), rotary)
  both = linear(w, 'q_proj', D, H, 2 * C)  # of each head, the query and then the gate
  params = dict(
    q={name: x[..., :C] for name, x in both.items()},
    gate={name: x[..., C:] for name, x in both.items()},
    k=linear(w, 'k_proj', D, kv_heads, C),
    v=linear(w, 'v_proj', D, kv_heads, C),
    out=linear(w, 'o_proj', H, C, D),
    q_norm=dict(scale=1 + w['q_norm.weight']),
    k_norm=dict(scale=1 + w['k_norm.weight']),
  )
  assert_equal(
    'mixer/gated',
    'transformers',
    params,
    theirs,
    kv_heads=kv_heads,
    bias=bias,
    position=f'rope({THETA}, fraction=0.5)',
    mixer='gated(qk_norm="rmsnorm")',
  )


@pytest.mark.parametrize('kv_heads, layer', [(H, 0), (2, 3)])
def test_differential_is_diff_llama(kv_heads, layer, assert_equal):
  config = DiffLlamaConfig(
    hidden_size=D,
    num_attention_heads=H,
    num_key_value_heads=kv_heads,
    head_dim=C,
    rms_norm_eps=1e-5,
    max_position_embeddings=64,
    rope_parameters=dict(rope_type='default', rope_theta=THETA),
    attn_implementation='eager',
  )
  module = diffllama.DiffLlamaAttention(config, layer).eval()
  w, theirs = run_published(module, diffllama.DiffLlamaRotaryEmbedding(config))

  def neighbours(kernel):
    """Their pairs of key heads i and i + K / 2, each with its query heads, as ours, 2 i and 2 i + 1."""
    apart = kernel.reshape(D, 2, kv_heads // 2, -1)
    return apart.swapaxes(1, 2).reshape(kernel.shape)

  params = {
    name: dict(kernel=neighbours(linear(w, f'{name}_proj', D, heads, C)['kernel']))
    for name, heads in (('q', H), ('k', kv_heads), ('v', kv_heads))
  }
  params |= {name: w[name] for name in w if name.startswith('lambda')}
  params |= dict(out=linear(w, 'o_proj', H, C, D), norm=dict(scale=np.ones(2 * C, np.float32)))
  assert_equal(
    'mixer/differential',
    'transformers',
    params,
    theirs,
    kv_heads=kv_heads,
    position=f'rope({THETA})',
    mixer=f'differential(initial_lambda={module.lambda_init})',
  )


def load_fla_reference(operator):
  """The reference of an operator of flash-linear-attention, from its file, as the package imports Triton."""
  package = importlib.util.find_spec('fla')
  if package is None:
    pytest.skip('needs the extra [oracle]: make oracle')
  file = pathlib.Path(package.submodule_search_locations[0]) / 'ops' / operator / 'naive.py'
  module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(operator, file))
  module.__spec__.loader.exec_module(module)
  return module


def run_operator(kv_heads, operator):
  """Parameters of a layer without biases, and W_O operator(W_Q x, W_K x, W_V x) in PyTorch."""
  draw = np.random.default_rng(1)
  params = {
    name: dict(kernel=draw.standard_normal((D, heads, C)).astype(np.float32) * 0.3)
    for name, heads in (('q', H), ('k', kv_heads), ('v', kv_heads))
  }
  heads = (
    torch.einsum('btd,dhc->bthc', torch.tensor(X), torch.tensor(params[name]['kernel'])) for name in 'qkv'
  )
  params['out'] = dict(kernel=draw.standard_normal((H, C, D)).astype(np.float32) * 0.3)
  y = torch.einsum('bthc,hcd->btd', operator(*heads), torch.tensor(params['out']['kernel']))
  return params, y.numpy()


@pytest.mark.parametrize('kv_heads', [H, 2])
def test_forgetting_is_that_of_flash_linear_attention(kv_heads, assert_equal):
  draw = np.random.default_rng(2)
  forget = dict(kernel=draw.standard_normal((D, H)), bias=draw.standard_normal(H))
  forget = {name: x.astype(np.float32) for name, x in forget.items()}
  gates = torch.nn.functional.logsigmoid(torch.tensor(X @ forget['kernel'] + forget['bias']))
  naive = load_fla_reference('forgetting_attn').naive_forgetting_attn
  params, theirs = run_operator(kv_heads, lambda q, k, v: naive(q, k, v, gates))
  model = dict(kv_heads=kv_heads, bias=False, position='none', mixer='forgetting')
  assert_equal('mixer/forgetting', 'fla-core', params | dict(forget=forget), theirs, **model)


@pytest.mark.parametrize('kv_heads', [H, 2])
def test_path_is_that_of_flash_linear_attention(kv_heads, assert_equal):
  draw = np.random.default_rng(2)
  shapes = dict(w=(D, kv_heads, C), beta=(D, kv_heads))
  more = {name: dict(kernel=draw.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}
  more['beta']['bias'] = draw.standard_normal(kv_heads).astype(np.float32)
  w = torch.einsum('btd,dhc->bthc', torch.tensor(X), torch.tensor(more['w']['kernel']))
  beta = 2 * torch.sigmoid(torch.tensor(X @ more['beta']['kernel'] + more['beta']['bias']))
  naive = load_fla_reference('path_attn').naive_path_attn
  params, theirs = run_operator(
    kv_heads,
    lambda q, k, v: naive(
      q, k, v, torch.nn.functional.normalize(w, dim=-1), beta, torch.zeros(B, T, H), C**-0.5, chunk_size=8
    ),
  )
  model = dict(kv_heads=kv_heads, bias=False, position='none', mixer='path')
  assert_equal('mixer/path', 'fla-core', params | more, theirs, **model)


def attend_like_x_transformers(**settings):
  """The attention function of x-transformers, causal, and its module, whose parameters are random."""
  library = pytest.importorskip('x_transformers.attend', reason='needs the extra [oracle]: make oracle')
  module = library.Attend(heads=H, causal=True, scale=C**-0.5, **settings).eval()
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.5)

  def operator(q, k, v):
    with torch.no_grad():
      out, _ = module(*(x.repeat_interleave(H // x.shape[2], 2).transpose(1, 2) for x in (q, k, v)))
    return out.transpose(1, 2)

  return operator, module


@pytest.mark.parametrize('kv_heads', [H, 2])
def test_stick_breaking_is_that_of_flash_linear_attention(kv_heads, assert_equal):
  naive = load_fla_reference('stickbreaking_attn').naive_stickbreaking_attn
  params, theirs = run_operator(kv_heads, lambda q, k, v: naive(q, k, v)[0])
  assert_equal(
    'mixer/stick_breaking',
    'fla-core',
    params,
    theirs,
    kv_heads=kv_heads,
    bias=False,
    position='none',
    mixer='stick_breaking',
  )


@pytest.mark.parametrize('kv_heads', [H, 2])
def test_talking_heads_are_those_of_x_transformers(kv_heads, assert_equal):
  operator, module = attend_like_x_transformers(pre_talking_heads=True, post_talking_heads=True)
  params, theirs = run_operator(kv_heads, operator)
  # Theirs adds the mixed logits to the logits themselves.
  logits, weights = (
    getattr(module, f'{name}_softmax_talking_heads').weight.detach().numpy()[..., 0, 0].T
    for name in ('pre', 'post')
  )
  params |= dict(mix_logits=logits + np.eye(H, dtype=np.float32), mix_weights=weights)
  assert_equal(
    'mixer/talking_heads',
    'x-transformers',
    params,
    theirs,
    kv_heads=kv_heads,
    bias=False,
    position='none',
    mixer='talking_heads',
  )


def test_cope_is_that_of_x_transformers(assert_equal):
  library = pytest.importorskip(
    'x_transformers.x_transformers', reason='needs the extra [oracle]: make oracle'
  )
  cope = library.CoPE(C, H, 6)
  operator, module = attend_like_x_transformers(cope=cope)
  params, theirs = run_operator(H, operator)
  params |= dict(position=dict(table=module.cope.pos_emb.detach().numpy()))
  assert_equal(
    'position/cope', 'x-transformers', params, theirs, bias=False, position='cope(rows=6)', mixer='softmax'
  )


@pytest.mark.parametrize('kv_heads', [H, 2])
def test_selective_is_that_of_x_transformers(kv_heads, assert_equal):
  params, theirs = run_operator(kv_heads, attend_like_x_transformers(selective=True)[0])
  assert_equal(
    'mixer/selective',
    'x-transformers',
    params,
    theirs,
    kv_heads=kv_heads,
    bias=False,
    position='none',
    mixer='selective',
  )


@pytest.mark.parametrize('taps', [0, 3])
def test_nystromformer(taps, record_difference):
  """With the coefficient of each matrix, which the published layer has beside that of the batch."""
  config = NystromformerConfig(
    hidden_size=D, num_attention_heads=H, num_landmarks=4, segment_means_seq_len=T - 1, conv_kernel_size=3
  )
  module = nystromformer.NystromformerSelfAttention(config).eval()
  module.init_option, module.conv_kernel_size = 'exact', taps or None
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.3)
    theirs = module(torch.tensor(X[:, :-1]))[0].numpy()
  w = {name: value.numpy() for name, value in module.state_dict().items()}
  params = {
    name[0]: linear(w, name, D, H, C) | dict(bias=w[f'{name}.bias'].reshape(H, C))
    for name in ('query', 'key', 'value')
  }
  params['out'] = dict(kernel=np.eye(D, dtype=np.float32).reshape(H, C, D), bias=np.zeros(D, np.float32))
  if taps:
    params['taps'] = w['conv.weight'][:, 0, :, 0]
  text = f'nystromformer(4, taps={taps})'
  model = dict(width=D, heads=H, head_width=C, position='none', mask='full', mixer=text, bias=True)
  config = resolve_config(complete(dict(data=dict(length=T), model=model)))
  mixer = assemble.build_block(Experiment(config), 'model', config.model, causal=False)().mixer()
  x = jnp.asarray(X[:, :-1])
  y, _ = mixer.apply({'params': params}, x, None, Context.contiguous(x[..., 0]), None)
  np.testing.assert_allclose(y, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())
  record_difference('mixer/nystromformer', 'transformers', y, theirs)
