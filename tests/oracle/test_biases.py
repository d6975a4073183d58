"""What enters at the logits, against the published implementations in transformers (PyTorch)."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402
from transformers.models.bloom.modeling_bloom import build_alibi_tensor  # noqa: E402
from transformers.models.deberta import modeling_deberta  # noqa: E402
from transformers.models.deberta_v2 import modeling_deberta_v2  # noqa: E402
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor  # noqa: E402
from transformers.models.t5.modeling_t5 import T5Attention  # noqa: E402
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention  # noqa: E402
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention  # noqa: E402

import tfm.positions  # noqa: E402
from tfm import spec  # noqa: E402
from tfm.layers.locations import Locations  # noqa: E402
from tfm.positions import deberta, t5  # noqa: E402
from tfm.positions.protocol import Position  # noqa: E402


B, T, H, C = 2, 24, 4, 8
D = H * C


def numbers(module):
  """Random weights, norms and biases too, as numpy."""
  torch.manual_seed(0)
  with torch.no_grad():
    for parameter in module.parameters():
      parameter.copy_(torch.randn_like(parameter) * 0.4)
  return {name: value.numpy() for name, value in module.eval().state_dict().items()}


def position(text, heads=H):
  return spec.factory(text, tfm.positions, Position, width=D, heads=heads, head_width=C, length=T)()


def logits(result, q, k, shared=None, params=()):
  """q·k/√C and the bias [B H T S], of q and k [B H T C] at positions 0, 1, …"""
  at = jnp.broadcast_to(jnp.arange(q.shape[2]), (q.shape[0], q.shape[2]))
  q, k = (jnp.asarray(x).swapaxes(1, 2) for x in (q, k))
  q, k = (x.swapaxes(1, 2) for x in result.apply({}, q, k, at, at, method='rotate'))
  there = Locations(at, jnp.ones_like(at))
  bias = result.apply({'params': dict(params)}, shared, method='bias')(q[:, :, None], k, there, there)
  return np.asarray(jnp.einsum('bhtc,bhsc->bhts', q, k) * q.shape[-1] ** -0.5 + bias[:, :, 0])


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def split(x):
  """[B T D] → [B H T C]."""
  return x.reshape(B, T, H, C).swapaxes(1, 2)


def draw(*shape):
  return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize('decoder', [True, False])
@pytest.mark.parametrize('buckets, max_distance', [(32, 128), (16, 20)])
def test_t5(decoder, buckets, max_distance, record_difference):
  config = transformers.T5Config(
    d_model=D,
    num_heads=H,
    relative_attention_num_buckets=buckets,
    relative_attention_max_distance=max_distance,
  )
  config.is_decoder = decoder
  module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
  table = numbers(module)['relative_attention_bias.weight']
  with torch.no_grad():
    theirs = module.compute_bias(300, 300).numpy()
  result = position(f't5({buckets}, {max_distance}, {not decoder})')
  shared = result.apply({'params': dict(table=jnp.asarray(table))}, method='compute_table')
  zeros = np.zeros((1, H, 300, C), np.float32)
  np.testing.assert_array_equal(logits(result, zeros, zeros, shared), theirs)
  record_difference('position/t5', 'transformers', logits(result, zeros, zeros, shared), theirs)
  far = np.arange(-5000, 5001)
  np.testing.assert_array_equal(
    t5.bucket(far, buckets, max_distance, not decoder),
    T5Attention._relative_position_bucket(torch.tensor(far), not decoder, buckets, max_distance),
  )


@pytest.mark.parametrize('heads', [1, 2, 6, 8, 12, 16, 20, 71, 112])
def test_alibi(heads, record_difference):
  """BLOOM adds slope · k, MPT slope · (k - the last position): ours, up to a number for each query."""
  zeros = np.zeros((1, heads, T, C), np.float32)
  ours = logits(position('alibi', heads), zeros, zeros)
  past = np.tril(np.ones((T, T), bool))
  bloom = build_alibi_tensor(torch.ones(1, T), heads, torch.float32).reshape(1, heads, 1, T).numpy()
  for theirs in (bloom, build_mpt_alibi_tensor(heads, T).numpy().reshape(1, heads, 1, T)):
    theirs = theirs - np.diagonal(np.broadcast_to(theirs, ours.shape), axis1=2, axis2=3)[..., None]
    np.testing.assert_allclose(ours[:, :, past], theirs[:, :, past], rtol=1e-5, atol=1e-5)
    record_difference('position/alibi', 'transformers', ours[:, :, past], theirs[:, :, past])


def test_transformer_xl(record_difference):
  """XLNet's attention is Transformer-XL's."""
  module = XLNetRelativeAttention(transformers.XLNetConfig(d_model=D, n_head=H, d_inner=8))
  w, h = numbers(module), draw(T, B, D)
  frequencies = 10000.0 ** (-np.arange(0, D, 2) / D)
  angles = np.arange(T, -T, -1)[:, None] * frequencies
  r = np.concatenate([np.sin(angles), np.cos(angles)], -1)[:, None].astype(np.float32)
  with torch.no_grad():
    *_, theirs = module(torch.tensor(h), None, None, None, torch.tensor(r), None, output_attentions=True)
  q, k = (np.einsum('tbd,dhc->bhtc', h, w[name]) for name in 'qk')
  ours = logits(
    position('transformer_xl'),
    q,
    k,
    params=dict(content_bias=w['r_w_bias'], position_bias=w['r_r_bias'], kernel=w['r']),
  )
  theirs = theirs.numpy().transpose(2, 3, 0, 1)
  np.testing.assert_allclose(softmax(ours), theirs, rtol=2e-4, atol=2e-6)
  record_difference('position/transformer_xl', 'transformers', softmax(ours), theirs)


@pytest.mark.parametrize('terms', [('c2p', 'p2c'), ('c2p',), ('p2c',)], ids='|'.join)
@pytest.mark.parametrize('share_att_key', [True, False])
@pytest.mark.parametrize('span, buckets', [(16, 8), (9, 0)])
def test_deberta_v2(span, buckets, share_att_key, terms, record_difference):
  config = transformers.DebertaV2Config(
    hidden_size=D,
    num_attention_heads=H,
    relative_attention=True,
    position_buckets=buckets or -1,
    max_relative_positions=span,
    pos_att_type=list(terms),
    share_att_key=share_att_key,
  )
  module = modeling_deberta_v2.DisentangledSelfAttention(config)
  w, h, table = numbers(module), draw(B, T, D), draw(2 * (buckets or span), D)
  with torch.no_grad():
    _, theirs = module(torch.tensor(h), torch.ones(B, 1, T, T), True, rel_embeddings=torch.tensor(table))
  prefix = '' if share_att_key else 'pos_'

  def project(name):
    kernel = dict(kernel=w[f'{prefix}{name}_proj.weight'].T.reshape(D, H, C))
    return kernel | (dict(bias=w[f'{prefix}{name}_proj.bias'].reshape(H, C)) if name == 'query' else {})

  q, k = (split(h @ w[f'{name}_proj.weight'].T + w[f'{name}_proj.bias']) for name in ('query', 'key'))
  result = position(f'deberta({span}, {buckets}, {"c2p" in terms}, {"p2c" in terms})')
  names = [name for name, term in (('key', 'c2p'), ('query', 'p2c')) if term in terms]
  ours = logits(result, q, k, jnp.asarray(table), {name: project(name) for name in names})
  np.testing.assert_allclose(softmax(ours), theirs.numpy(), rtol=2e-4, atol=2e-6)
  record_difference('position/deberta', 'transformers', softmax(ours), theirs.numpy())


def test_deberta_v1():
  config = transformers.DebertaConfig(
    hidden_size=D,
    num_attention_heads=H,
    relative_attention=True,
    max_relative_positions=9,
    pos_att_type=['c2p', 'p2c'],
  )
  module = modeling_deberta.DisentangledSelfAttention(config)
  w, h, table = numbers(module), draw(B, T, D), draw(18, D)
  h_, mask = torch.tensor(h), torch.ones(B, 1, T, T)
  distances = modeling_deberta.build_relative_position(h_, h_)
  with torch.no_grad():
    _, theirs = module(h_, mask, True, relative_pos=distances, rel_embeddings=torch.tensor(table))
  q, k, _ = np.split((h @ w['in_proj.weight'].T).reshape(B, T, H, 3 * C).swapaxes(1, 2), 3, -1)
  params = dict(
    key=dict(kernel=w['pos_proj.weight'].T.reshape(D, H, C)),
    query=dict(kernel=w['pos_q_proj.weight'].T.reshape(D, H, C), bias=w['pos_q_proj.bias'].reshape(H, C)),
  )
  ours = logits(position('deberta(9)'), q + w['q_bias'].reshape(1, H, 1, C), k, jnp.asarray(table), params)
  np.testing.assert_allclose(softmax(ours), theirs.numpy(), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize('buckets, max_distance', [(256, 512), (32, 100)])
def test_deberta_buckets(buckets, max_distance):
  distances = np.arange(-max_distance, max_distance + 1)
  published = modeling_deberta_v2.make_log_bucket_position
  theirs = published(torch.tensor(distances), buckets, max_distance).numpy()
  np.testing.assert_array_equal(
    deberta.bucket(distances, max_distance, buckets), np.clip(theirs + buckets, 0, 2 * buckets - 1)
  )


def test_shaw(record_difference):
  """Wav2Vec2-BERT and SeamlessM4T clip distances so, and have no table for values either."""
  config = transformers.Wav2Vec2BertConfig(
    hidden_size=D,
    num_attention_heads=H,
    position_embeddings_type='relative_key',
    left_max_position_embeddings=6,
    right_max_position_embeddings=6,
    attn_implementation='eager',
  )
  module = Wav2Vec2BertSelfAttention(config)
  w, h = numbers(module), draw(B, T, D)
  with torch.no_grad():
    _, theirs = module(torch.tensor(h))
  q, k = (split(h @ w[f'linear_{name}.weight'].T + w[f'linear_{name}.bias']) for name in 'qk')
  ours = logits(position('shaw(6)'), q, k, params=dict(table=w['distance_embedding.weight']))
  np.testing.assert_allclose(softmax(ours), theirs.numpy(), rtol=2e-4, atol=2e-6)
  record_difference('position/shaw', 'transformers', softmax(ours), theirs.numpy())
