"""The fused GPU kernel: the arguments it passes to JAX, which compute the dense kernel's attention."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from jax.tree_util import Partial

from tests.kernels.test_chunked import attention_inputs, kernel
from tfm import spec
from tfm.conformance import collect
from tfm.conformance.tiny import apply_with_random_params
from tfm.kernels.cudnn import unsupported_gpu_reason
from tfm.kernels.protocol import AttentionInputs, mask_band
from tfm.layers.dot_product import scaled_dot
from tfm.parallel import mesh
from tfm.parallel.sharding import context, parse_rules


B, T, H, K, C = 3, 24, 4, 2, 8
MASKS = ('causal', 'causal & window(5)', 'window(7, 0)', 'full', 'window(30) & causal', 'causal & window(0)')


def arrays(T=T, S=None, K=K, C=C, C2=None, dtype='bfloat16'):
  draw = np.random.default_rng(0)
  shapes = (T, H, C), (S or T, K, C), (S or T, K, C2 or C)
  return tuple(jnp.asarray(draw.standard_normal((B, *shape)), dtype) for shape in shapes)


def padded_row_inputs(mask, T=T, scale=0.4, lengths=(24, 15, 0), **more):
  """The attention inputs of rows of some lengths, padded to T tokens."""
  segments = (jnp.arange(T)[None, :] < jnp.asarray(lengths)[:, None]).astype(jnp.int32)
  score = Partial(functools.partial(scaled_dot, scale=scale))
  at = jnp.broadcast_to(jnp.arange(T), segments.shape)
  return (
    attention_inputs(mask, T=T, score=score)
    | dict(q_segments=segments, k_segments=segments, q_positions=at, k_positions=at)
    | more
  )


def run(text, qkv, fields):
  """(out, gradients of q, k, v), compiled."""

  def pull(*qkv):
    y, back = jax.vjp(lambda *qkv: kernel(text)(*qkv, **fields), *qkv)
    return y, back(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

  return jax.jit(pull)(*qkv)


@pytest.fixture
def fused(monkeypatch):
  """Lets lowering proceed as if cuDNN and a GPU were installed."""
  monkeypatch.setattr(fused_attention_stablehlo, 'check_cudnn_version', lambda: 91000)
  monkeypatch.setattr(fused_attention_stablehlo, 'check_compute_capability', lambda capability: True)


@pytest.mark.sampled(4)
@pytest.mark.parametrize('dtype, tolerance', [('float32', 2e-6), ('bfloat16', 2e-2)])
@pytest.mark.parametrize(
  'K', [pytest.param(4, marks=pytest.mark.slow), 2, pytest.param(1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('mask', MASKS)
def test_jax_call_equals_the_dense_kernel(mask, K, dtype, tolerance):
  qkv = arrays(K=K, dtype=dtype)
  for x, y in zip(
    *(jax.tree.leaves(run(text, qkv, padded_row_inputs(mask))) for text in ('cudnn("xla")', 'dense'))
  ):
    assert x.dtype == y.dtype
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    assert np.abs(x - y).max() <= tolerance * max(1, np.abs(y).max())


@pytest.mark.parametrize('mask', ['causal', 'full'])
def test_padding_changes_nothing(mask):
  """Values in the padding change no output; outputs and gradients in the padding are zero."""
  q, k, v = arrays(dtype='float32')
  wild = tuple(x.at[1, 15:].set(1e3).at[2].set(1e3) for x in (q, k, v))
  out, gradients = run('cudnn("xla")', wild, padded_row_inputs(mask))
  assert not out[1, 15:].any() and not out[2].any()
  for gradient in gradients:
    assert not gradient[1, 15:].any() and not gradient[2].any()
  np.testing.assert_array_equal(out[:2], run('cudnn("xla")', (q, k, v), padded_row_inputs(mask))[0][:2])


@pytest.mark.parametrize(
  'mask, kind, window', [('causal', 'CAUSAL', 0), ('causal & window(5)', 'CAUSAL', 6), ('full', 'PADDING', 0)]
)
def test_lowers_to_fused_calls(fused, mask, kind, window):
  def loss(*qkv):
    return (
      kernel('cudnn').attend(*qkv, AttentionInputs(**padded_row_inputs(mask)))[0].astype(jnp.float32).sum()
    )

  text = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*arrays()).lower(lowering_platforms=('cuda',)).as_text()
  assert re.findall(r'@__cudnn\$(\w+)', text) == ['fmhaSoftmax', 'fmhaSoftmaxBackward']
  configs = re.findall(r'backend_config = "(\{.*?\})"', text)
  assert len(configs) == 2
  for text in configs:
    config = json.loads(text.replace('\\22', '"'))['cudnn_fmha_backend_config']
    assert (config['mask_type'], config['sliding_window_length'], config['fmha_scale']) == (kind, window, 0.4)


@pytest.mark.parametrize('K, local', [(2, 1), (1, 1)])
def test_each_device_computes_its_rows_and_heads(fused, K, local):
  """On 2 × 2 × 2 devices with two query heads each: one of two key heads, or the single one."""
  mesh = jax.make_mesh((2, 2, 2), ('data', 'fsdp', 'tensor'), axis_types=(AxisType.Auto,) * 3)
  rules = parse_rules(dict(batch='data fsdp', length='', heads='tensor', kv_heads='tensor', kv=''))
  inputs = padded_row_inputs('causal', lengths=(24, 15, 0, 24))
  q, k, v = (jnp.concatenate([x, x[:1]]) for x in arrays(K=K))

  def loss(kernel, *qkv):
    return jnp.sin(kernel.attend(*qkv, AttentionInputs(**inputs))[0].astype(jnp.float32)).sum()

  def step(text):
    return jax.jit(jax.value_and_grad(functools.partial(loss, kernel(text)), (0, 1, 2)))

  with context(mesh, rules):
    text = step('cudnn').trace(q, k, v).lower(lowering_platforms=('cuda',)).as_text()
    sharded = step('cudnn("xla")')(q, k, v)
  (call,) = re.findall(r'@__cudnn\$fmhaSoftmax\(.*?: \((.*?)\) ->', text)
  assert call.split(', ')[:3] == ['tensor<1x24x2x8xbf16>'] + [f'tensor<1x24x{local}x8xbf16>'] * 2
  for x, y in zip(jax.tree.leaves(sharded), jax.tree.leaves(step('dense')(q, k, v))):
    np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(mask='window(5)'), 'full, or causal with or without a window to the left'),
    (dict(mask='~causal'), 'full, or causal'),
    (dict(mask='causal & ~window(0)'), 'full, or causal'),
    (dict(mask='dilated(3, 2) & causal'), 'full, or causal'),
    (dict(mask='longformer(3, 1)'), 'full, or causal'),
    (dict(mask='prefix'), 'compiles the mask'),
    (dict(layout='packed'), "layout='packed' does not guarantee"),
    (dict(layout='arbitrary'), "layout='arbitrary' does not guarantee"),
    (dict(S=30), 'as many keys as queries, not 30 keys and 24 queries'),
    (dict(C2=16), 'as wide as its keys, not 16 against 8'),
    (dict(dtype='float32'), 'float16 or bfloat16, not float32'),
    (dict(C=12), 'a multiple of 8 and at most 128, not 12'),
    (dict(C=136), 'at most 128, not 136'),
    (dict(bias=Partial(jnp.add)), 'no bias'),
    (dict(score=Partial(jnp.add)), 'no score but'),
    (dict(sinks=jnp.zeros(H)), 'no sinks'),
    (dict(soft_cap=3.0), 'no soft cap'),
    (dict(normalizer='sigmoid'), 'softmax only'),
    (dict(dropout=0.1, dropout_key=jax.random.key(0)), 'dropout'),
  ],
  ids=lambda x: '' if isinstance(x, str) else ' '.join(f'{key}={value}'[:30] for key, value in x.items()),
)
def test_unsupported_inputs(fields, message):
  fields = dict(fields)
  qkv = arrays(**{name: fields.pop(name) for name in ('S', 'C', 'C2', 'dtype') if name in fields})
  reason = kernel('cudnn').unsupported_reason(
    *qkv, AttentionInputs(**padded_row_inputs(fields.pop('mask', 'causal'), **fields))
  )
  assert message in reason


def test_supports_a_dropout_rate_without_a_key():
  for more in (dict(dropout=0.1), dict(dropout_key=jax.random.key(0))):
    assert (
      kernel('cudnn').unsupported_reason(*arrays(), AttentionInputs(**padded_row_inputs('causal', **more)))
      is None
    )


@pytest.mark.parametrize(
  'text, scale',
  [('dot', 0.25), ('dot(1.0)', 1.0)]
  + [(text, None) for text in collect.specs('score') if not text.startswith('dot')],
)
def test_recognizes_the_scaled_dot_product(text, scale):
  score = apply_with_random_params(
    spec.factory(text, *collect.SLOTS['score'], head_width=16), lambda module: module()
  )
  assert AttentionInputs(**padded_row_inputs('causal', score=score)).scale == scale


def test_a_learned_factor_is_not_a_scaled_dot_product():
  assert AttentionInputs(**padded_row_inputs('causal')).scale == 0.4
  learned = Partial(lambda weight, q, k: weight * scaled_dot(q, k, 1.0), jnp.ones(()))
  assert AttentionInputs(**padded_row_inputs('causal', score=learned)).scale is None
  assert jax.jit(lambda inputs: jnp.float32(inputs.scale))(
    AttentionInputs(**padded_row_inputs('causal'))
  ) == jnp.float32(0.4)


@pytest.mark.parametrize(
  'mask, expected',
  [
    ('full', (None, None)),
    ('causal', (None, 0)),
    ('~causal', (-1, None)),
    ('causal & window(3)', (3, 0)),
    ('window(2, 4)', (2, 4)),
    ('window(5) & ~causal', (-1, 5)),
    ('window(11)', (None, None)),
    ('window(9)', (9, 9)),
    ('dilated(2, 3)', None),
    ('~window(3)', None),
    ('chunked(4)', None),
    ('window(2) | (causal & window(4))', (4, 2)),
    ('causal & ~causal', None),
  ],
)
def test_recognizes_bands_by_the_pairs_shown(mask, expected):
  assert mask_band(collect.mask(mask), 12, 12) == expected


def test_bands_of_unequal_lengths():
  assert mask_band(collect.mask('window(3)'), 4, 12) == (None, 3)
  assert mask_band(collect.mask('window(3)'), 12, 4) == (3, None)
  assert mask_band(collect.mask('causal'), 1, 1) == (None, None)


def test_requires_a_recent_nvidia_gpu():
  with pytest.raises(ValueError, match='it runs on gpu, not on cpu'):
    kernel('cudnn')(*arrays(), **padded_row_inputs('causal'))
  assert unsupported_gpu_reason('9.0') is None and unsupported_gpu_reason('10.3') is None
  assert "not '7.5'" in unsupported_gpu_reason('7.5') and "not 'gfx942'" in unsupported_gpu_reason('gfx942')
  assert 'none is attached' in kernel('cudnn').unavailable_reason('gpu')


@pytest.mark.parametrize(
  'kind, capability', [('NVIDIA H100 80GB HBM3', '9.0'), ('NVIDIA B200', '10.0'), ('Another', None)]
)
def test_capability_of_an_unattached_gpu_comes_from_the_table(kind, capability):
  device = AbstractDevice(device_kind=kind, num_cores=132, platform='cuda')
  with jax.sharding.use_abstract_mesh(
    AbstractMesh((1,), ('data',), axis_types=(AxisType.Auto,), abstract_device=device)
  ):
    assert mesh.gpu_capability('gpu') == capability
    assert (kernel('cudnn').unavailable_reason('gpu') is None) == (capability is not None)
    assert mesh.attached_device('gpu') is None


def test_rejects_an_unknown_implementation():
  with pytest.raises(ValueError, match="implementation='flash' is unknown; use "):
    kernel('cudnn("flash")')
