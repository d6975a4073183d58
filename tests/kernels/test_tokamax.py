"""The optional GPU kernel: equal to dense if its package is installed, and a clear reason if it is not."""

import importlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from jax.tree_util import Partial

import tfm.kernels.tokamax as module
from tests.kernels.test_cudnn import MASKS, arrays, kernel, padded_row_inputs, run
from tfm.kernels.protocol import AttentionInputs
from tfm.parallel.sharding import context, parse_rules


ANYWHERE = 'tokamax("xla_chunked")'


@pytest.fixture
def tokamax():
  if reason := module.import_error():
    pytest.skip(reason)
  return module.package()


@pytest.mark.parametrize('dtype, tolerance', [('float32', 2e-6), ('bfloat16', 2e-2)])
@pytest.mark.parametrize('fields', [{}, dict(soft_cap=1.5)], ids=['plain', 'soft cap'])
@pytest.mark.parametrize('mask', MASKS)
def test_tokamax_call_equals_the_dense_kernel(tokamax, mask, fields, dtype, tolerance):
  qkv = arrays(C2=16, dtype=dtype)
  for x, y in zip(
    *(jax.tree.leaves(run(text, qkv, padded_row_inputs(mask, **fields))) for text in (ANYWHERE, 'dense'))
  ):
    assert x.dtype == y.dtype
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    assert np.abs(x - y).max() <= tolerance * max(1, np.abs(y).max())


@pytest.mark.parametrize('mask', ['causal', 'full'])
def test_padding_changes_nothing(tokamax, mask):
  qkv = tuple(x.at[1, 15:].set(1e3).at[2].set(1e3) for x in arrays(dtype='float32'))
  out, gradients = run(ANYWHERE, qkv, padded_row_inputs(mask))
  for x in (out, *gradients):
    assert not x[1, 15:].any() and not x[2].any() and x[0].any()


@pytest.mark.parametrize('K', [2, 1])
def test_sharded_equals_one_device(tokamax, K):
  mesh = jax.make_mesh((2, 2, 2), ('data', 'fsdp', 'tensor'), axis_types=(AxisType.Auto,) * 3)
  rules = parse_rules(dict(batch='data fsdp', length='', heads='tensor', kv_heads='tensor', kv=''))
  qkv = tuple(jnp.concatenate([x, x[:1]]) for x in arrays(K=K, dtype='float32'))
  with context(mesh, rules):
    sharded = run(ANYWHERE, qkv, padded_row_inputs('full', lengths=(24, 15, 0, 24)))
  expected = run('dense', qkv, padded_row_inputs('full', lengths=(24, 15, 0, 24)))
  for x, y in zip(jax.tree.leaves(sharded), jax.tree.leaves(expected)):
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6)


class Gpu:
  """The library queries the attached GPU."""

  device_kind, platform, compute_capability = 'NVIDIA H100 80GB HBM3', 'gpu', '9.0'


@pytest.mark.parametrize('mask', ['causal', 'causal & window(5)', 'full'])
@pytest.mark.parametrize('implementation, call', [('mosaic', 'mosaic_gpu'), ('triton', 'triton')])
def test_lowers_to_library_kernels(tokamax, monkeypatch, implementation, call, mask):
  gpu = Gpu()
  backend = importlib.import_module('tokamax._src.ops.attention.api').backend
  monkeypatch.setattr(backend, 'get_default_device', lambda: gpu)
  device = AbstractDevice(device_kind=gpu.device_kind, num_cores=132, platform='cuda')
  mesh = AbstractMesh((1,), ('data',), axis_types=(AxisType.Auto,), abstract_device=device)

  def loss(*qkv):
    attention = kernel(f'tokamax({implementation!r})')
    return (
      attention.attend(*qkv, AttentionInputs(**padded_row_inputs(mask, T=256)))[0].astype(jnp.float32).sum()
    )

  with jax.sharding.use_abstract_mesh(mesh), tokamax.config.cross_compile(True):
    lowered = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*arrays(256, C=64)).lower(lowering_platforms=('cuda',))
  assert len(re.findall(rf'custom_call @\S*{call}', lowered.as_text())) >= 2


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(mask='window(5)'), 'full, or causal with or without a window to the left'),
    (dict(layout='packed'), "layout='packed' does not guarantee"),
    (dict(T=128, S=256), 'as many keys as queries, not 256 keys and 128 queries'),
    (dict(T=100), 'lengths must be multiples of 128, not 100'),
    (dict(T=128, dtype='float32'), 'float16 or bfloat16, not float32'),
    (dict(bias=Partial(jnp.add)), 'no bias'),
    (dict(score=Partial(jnp.add)), 'no score but'),
    (dict(sinks=jnp.zeros(4)), 'no sinks'),
    (dict(normalizer='sigmoid'), 'softmax only'),
    (dict(dropout=0.1, dropout_key=jax.random.key(0)), 'dropout'),
  ],
  ids=lambda x: '' if isinstance(x, str) else ' '.join(f'{key}={value}'[:30] for key, value in x.items()),
)
def test_unsupported_inputs(fields, message):
  fields = dict(fields)
  shape = {name: fields.pop(name) for name in ('T', 'S', 'dtype') if name in fields}
  mask = fields.pop('mask', 'causal')
  inputs = AttentionInputs(**padded_row_inputs(mask, T=shape.get('T', 24), **fields))
  assert message in kernel('tokamax').unsupported_reason(*arrays(**shape), inputs)


def test_only_mosaic_supports_soft_caps():
  reasons = [
    kernel(text).unsupported_reason(
      *arrays(128), AttentionInputs(**padded_row_inputs('causal', T=128, soft_cap=3.0))
    )
    for text in ('tokamax', 'tokamax("triton")')
  ]
  assert reasons[0] is None and 'no soft cap' in reasons[1]


def test_missing_package_is_the_reason(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tokamax', None)
  for cached in (module.package, module.import_error):
    cached.cache_clear()
  try:
    with pytest.raises(ValueError, match=f'package tokamax cannot be imported with jax {jax.__version__}'):
      kernel(ANYWHERE)(*arrays(), **padded_row_inputs('causal'))
  finally:
    for cached in (module.package, module.import_error):
      cached.cache_clear()


def test_requires_a_recent_nvidia_gpu():
  assert 'it runs on gpu, not on tpu' in kernel('tokamax').unavailable_reason('tpu')
  assert (
    module.unsupported_gpu_reason('mosaic', '9.0') is None
    and module.unsupported_gpu_reason('triton', '8.6') is None
  )
  assert "capability 9 or later, below 11, not '8.0'" in module.unsupported_gpu_reason('mosaic', '8.0')
  assert "not 'gfx942'" in module.unsupported_gpu_reason('triton', 'gfx942')
  assert 'none is attached' in module.unsupported_gpu_reason('mosaic', None)


def test_does_not_parse_the_command_line(tokamax, monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['tfm', '--unknown'])
  flags.FLAGS.unparse_flags()
  module.package.cache_clear()
  kernel(ANYWHERE)(*arrays(), **padded_row_inputs('causal'))
  assert flags.FLAGS.is_parsed()


def test_rejects_an_unknown_implementation():
  with pytest.raises(ValueError, match="implementation='flash' is unknown; use one of "):
    kernel('tokamax("flash")')
