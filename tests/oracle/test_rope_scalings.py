"""Rotary and sinusoidal positions equal the published ones, in transformers and x-transformers (PyTorch)."""

import numpy as np
import pytest


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
transformers = pytest.importorskip('transformers', reason='needs the extra [oracle]: make oracle')

import jax.numpy as jnp  # noqa: E402
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox  # noqa: E402
from transformers.models.gptj import modeling_gptj as gptj  # noqa: E402
from transformers.models.llama import modeling_llama as llama  # noqa: E402
from transformers.models.m2m_100 import modeling_m2m_100 as m2m_100  # noqa: E402
from transformers.models.marian import modeling_marian as marian  # noqa: E402
from transformers.models.phi import modeling_phi as phi  # noqa: E402
from transformers.models.phi3 import modeling_phi3 as phi3  # noqa: E402

import tfm.positions  # noqa: E402
from tfm import spec  # noqa: E402
from tfm.positions.protocol import Position  # noqa: E402


HEADS, WIDTH = 4, 16  # of a head


def make_rope(text, width=WIDTH, length=64):
  return spec.factory(
    text, tfm.positions, Position, width=HEADS * width, heads=HEADS, head_width=width, length=length
  )()


def config(theta, width=WIDTH, longest=64, fraction=1.0, kind=transformers.LlamaConfig, **parameters):
  """A published config; `longest` is what it calls max_position_embeddings."""
  return kind(
    hidden_size=HEADS * width,
    num_attention_heads=HEADS,
    max_position_embeddings=longest,
    rope_parameters=dict(rope_theta=theta, partial_rotary_factor=fraction, **parameters),
    pad_token_id=0,
  )


def yarn(draw):
  chosen = dict(factor=draw.uniform(1, 40), original=int(draw.choice([64, 777, 4096])))
  chosen |= [
    {},
    dict(beta_fast=draw.uniform(8, 50), beta_slow=draw.uniform(0.5, 4)),
    dict(truncate=False),
    dict(attention_factor=draw.uniform(0.5, 2)),
    dict(mscale=draw.uniform(0.5, 1.5), mscale_all_dim=0.8),
  ][draw.integers(5)]
  return chosen


def longrope(draw, pairs):
  chosen = dict(original=int(draw.choice([64, 4096])), factor=draw.uniform(1, 40))
  for name in ('short_factor', 'long_factor'):
    chosen[name] = tuple(np.sort(draw.uniform(1, 30, pairs)).tolist())
  return chosen | ({} if draw.integers(2) else dict(attention_factor=draw.uniform(0.5, 2)))


# What each draws of its arguments; `original` is theirs under another name, `length` is their seq_len.
DRAWN = {
  'linear': lambda draw, pairs: dict(factor=draw.uniform(1, 20)),
  'proportional': lambda draw, pairs: dict(share=draw.uniform(0, 1), factor=draw.uniform(1, 20)),
  'dynamic': lambda draw, pairs: dict(
    factor=draw.uniform(1, 20), original=int(draw.choice([64, 2048])), length=int(draw.integers(32, 10_000))
  ),
  'yarn': lambda draw, pairs: yarn(draw),
  'llama3': lambda draw, pairs: dict(
    factor=draw.uniform(1, 40),
    low_freq_factor=draw.uniform(0.5, 2),
    high_freq_factor=draw.uniform(2.5, 9),
    original=int(draw.choice([64, 1024, 8192])),
  ),
  'longrope': lambda draw, pairs: longrope(draw, pairs) | dict(length=int(draw.integers(32, 10_000))),
}


@pytest.mark.parametrize('seed', range(12))
@pytest.mark.parametrize('name', DRAWN)
def test_frequencies_and_attention_factors(name, seed):
  draw = np.random.default_rng(seed)
  width = int(draw.choice([8, 64, 96, 128]))
  fraction = 1.0 if name == 'proportional' else float(draw.choice([0.5, 1.0]))
  theta = float(draw.choice([500.0, 10_000.0, 500_000.0, 1e6]))
  chosen = DRAWN[name](draw, int(width * fraction) // 2)
  arguments = ', '.join(f'{key}={value!r}' for key, value in chosen.items())
  position = make_rope(f'rope({theta!r}, {fraction!r}, scaling={f"{name}({arguments})"!r})', width)
  ours, factor = position.waves()
  length, original = chosen.pop('length', None), chosen.pop('original', 64)
  # Theirs rotates a share of all channels, and has no other fraction.
  fraction = chosen.pop('share', fraction)
  chosen = {key: list(value) if isinstance(value, tuple) else value for key, value in chosen.items()}
  # Dynamic scaling reads the original length from the config, the others from the parameters.
  if name in ('yarn', 'llama3', 'longrope'):
    chosen['original_max_position_embeddings'] = original
  theirs, their_factor = ROPE_INIT_FUNCTIONS[name](
    config(theta, width, original, fraction, rope_type=name, **chosen), seq_len=length
  )
  np.testing.assert_allclose(ours, theirs.double().numpy(), rtol=2e-6)
  np.testing.assert_allclose(factor, their_factor, rtol=1e-12)


Q, K = (
  np.random.default_rng(i).standard_normal((2, 64, heads, WIDTH)).astype(np.float32)
  for i, heads in ((0, HEADS), (1, 2))
)
AT = np.stack([np.arange(64), np.random.default_rng(2).permutation(64)])
PAIRS = tuple(np.linspace(1, 9, WIDTH // 2).tolist())


def ours(text, width=WIDTH):
  """q, k [B T H C] after our rotation."""
  return make_rope(text, width).apply({}, *map(jnp.asarray, (Q, K, AT, AT)), method='rotate')


def theirs(module, embedding, c):
  """q, k after that of a model of transformers, which reads a sequence of 64 tokens."""
  q, k = (torch.tensor(x).transpose(1, 2) for x in (Q, K))
  cos, sin = embedding(c)(q, torch.tensor(AT))
  return tuple(x.transpose(1, 2).numpy() for x in module.apply_rotary_pos_emb(q, k, cos, sin))


def assert_equal(mine, published):
  """Rotated queries and keys, and so their products."""
  for x, y in zip(mine, published, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=3e-5)
  products = [
    np.einsum('bthc,bshc->bhts', np.asarray(q, np.float64)[:, :, :2], np.asarray(k, np.float64))
    for q, k in (mine, published)
  ]
  np.testing.assert_allclose(*products, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
  'scaling, longest, parameters',
  [
    ('none', 64, dict(rope_type='default')),
    ('linear(4)', 64, dict(rope_type='linear', factor=4.0)),
    # Read 64 tokens at once where 16 were trained on, theirs is ours; with a cache it is not.
    ('dynamic(2, 16)', 16, dict(rope_type='dynamic', factor=2.0)),
    ('dynamic(2, 100)', 100, dict(rope_type='dynamic', factor=2.0)),
    ('yarn(4, 16)', 64, dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=16)),
    (
      'llama3(4, original=32)',
      64,
      dict(
        rope_type='llama3',
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
      ),
    ),
  ],
)
def test_llama(scaling, longest, parameters, record_difference):
  c = config(500.0, longest=longest, **parameters)
  mine, published = ours(f'rope(500, scaling={scaling!r})'), theirs(llama, llama.LlamaRotaryEmbedding, c)
  assert_equal(mine, published)
  for x, y in zip(mine, published, strict=True):
    record_difference('position/rope', 'transformers', x, y)


@pytest.mark.parametrize('original', [16, 63, 64])
def test_phi3(original):
  """The long factors for more than the original length; its attention factor is that of the whole config."""
  c = config(
    500.0,
    longest=64,
    kind=transformers.Phi3Config,
    rope_type='longrope',
    short_factor=[1.5] * 8,
    long_factor=list(PAIRS),
    original_max_position_embeddings=original,
  )
  c.original_max_position_embeddings = original
  scaling = f'longrope({(1.5,) * 8}, {PAIRS}, {original})'
  assert_equal(ours(f'rope(500, scaling={scaling!r})'), theirs(phi3, phi3.Phi3RotaryEmbedding, c))


@pytest.mark.parametrize('fraction', [0.25, 0.5, 1.0])
def test_gpt_neox(fraction):
  c = config(10_000.0, fraction=fraction, kind=transformers.GPTNeoXConfig, rope_type='default')
  assert_equal(ours(f'rope(fraction={fraction})'), theirs(gpt_neox, gpt_neox.GPTNeoXRotaryEmbedding, c))


@pytest.mark.parametrize('fraction', [0.5, 1.0])
def test_gptj(fraction):
  """Neighbours are pairs."""
  channels = int(fraction * WIDTH)
  sin, cos = gptj.create_sinusoidal_positions(64, channels)[torch.tensor(AT)].split(channels // 2, -1)

  def turned(x):
    x = torch.tensor(x)
    return torch.cat([gptj.apply_rotary_pos_emb(x[..., :channels], sin, cos), x[..., channels:]], -1).numpy()

  assert_equal(ours(f'rope(fraction={fraction}, interleaved=True)'), (turned(Q), turned(K)))


def test_phi():
  """The rotation inside Phi's attention: projections that do nothing, and the logits it makes."""
  c = config(10_000.0, fraction=0.5, kind=transformers.PhiConfig, rope_type='default')
  c._attn_implementation = 'eager'
  attention = phi.PhiAttention(c, 0)
  with torch.no_grad():
    for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.dense):
      linear.weight.copy_(torch.eye(HEADS * WIDTH))
      linear.bias.zero_()
    x = torch.tensor(Q).flatten(2)
    weights = attention(x, phi.PhiRotaryEmbedding(c)(x, torch.tensor(AT)), None)[1].numpy()
  position = make_rope('rope(fraction=0.5)')
  q, k = position.apply({}, *map(jnp.asarray, (Q, Q, AT, AT)), method='rotate')
  logits = np.einsum('bthc,bshc->bhts', *(np.asarray(x, np.float64) for x in (q, k))) / WIDTH**0.5
  expected = np.exp(logits - logits.max(-1, keepdims=True))
  np.testing.assert_allclose(weights, expected / expected.sum(-1, keepdims=True), rtol=0, atol=2e-5)


def test_xpos(record_difference):
  """The factors are around another position, which cancels in products."""
  x_transformers = pytest.importorskip(
    'x_transformers.x_transformers', reason='needs the extra [oracle]: make oracle'
  )
  turns, scale = x_transformers.RotaryEmbedding(WIDTH, use_xpos=True).forward_from_seq_len(64)
  q, k = (
    x_transformers.apply_rotary_pos_emb(torch.tensor(x).transpose(1, 2), turns, factor).numpy()
    for x, factor in ((Q[:, :, :2], scale), (K, scale**-1))
  )
  published = np.einsum('bhtc,bhsc->bhts', q.astype(np.float64), k.astype(np.float64))
  for length in (64, 500):
    at = jnp.broadcast_to(jnp.arange(64), (2, 64))
    mine = make_rope('xpos', length=length).apply({}, jnp.asarray(Q), jnp.asarray(K), at, at, method='rotate')
    q, k = (np.asarray(x, np.float64) for x in mine)
    products = np.einsum('bthc,bshc->bhts', q[:, :, :2], k)
    np.testing.assert_allclose(products, published, rtol=0, atol=2e-5)
    record_difference('position/xpos', 'x-transformers', products, published)


@pytest.mark.parametrize('width', [6, 64])
def test_marian_and_fairseq(width):
  """Sines before cosines; fairseq's last wavelength is the base itself, and its positions count from 2."""
  at = np.tile(np.arange(50), (1, 1))

  def encoding(text):
    zeros = jnp.zeros((1, 50, HEADS * width))
    return np.asarray(make_rope(text, width).apply({}, zeros, jnp.asarray(at), method='embed'))[0]

  D = HEADS * width
  table = marian.MarianSinusoidalPositionalEmbedding(50, D).create_weight().numpy()
  np.testing.assert_allclose(encoding('sinusoidal(interleaved=False)'), table, rtol=0, atol=1e-6)
  table = m2m_100.M2M100SinusoidalPositionalEmbedding.get_embedding(50, D).numpy()
  ours = encoding(f'sinusoidal({10_000 ** (D / (D - 2))!r}, interleaved=False)')
  np.testing.assert_allclose(ours, table, rtol=0, atol=2e-5)
