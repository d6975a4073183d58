"""The TPU kernel, interpreted on any platform: equal to dense, alone and on a mesh; unsupported inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from jax.tree_util import Partial

from tests.kernels.test_chunked import attention_inputs, kernel
from tfm.conformance import collect
from tfm.kernels.protocol import AttentionInputs
from tfm.layers.dot_product import scaled_dot
from tfm.parallel.sharding import context, parse_rules


INTERPRETED = 'splash(128, interpret=True)'
B, T, H, K, C = 2, 128, 4, 2, 8
SINKS = jnp.asarray([0.3, -1.0, 2.0, 0.0])


def arrays(T=T, K=K, B=B, dtype='float32'):
  draw = np.random.default_rng(0)
  return tuple(jnp.asarray(draw.standard_normal((B, T, heads, C)), dtype) for heads in (H, K, K))


def segments(*runs):
  """The segment ids of rows, each a list of runs (segment, tokens)."""
  rows = jnp.asarray([np.repeat(*np.array(row).T) for row in runs], jnp.int32)
  return dict(q_segments=rows, k_segments=rows)


PACKED = dict(layout='packed') | segments([(1, 50), (2, 150), (0, 56)], [(1, 256)])
PADDED = segments([(1, 100), (0, 28)], [(0, 128)])
CASES = {
  'grouped': dict(mask='causal'),
  'packed window': dict(mask='causal & window(40)', T=256, **PACKED),
  'padding': dict(mask='full', **PADDED),
  'multi-query soft cap': dict(mask='causal', K=1, soft_cap=1.5),
  'window both ways': dict(mask='window(30)', T=256),
  'sinks': dict(mask='causal & window(9)', sinks=SINKS, **PADDED),
  'not relative': dict(mask='causal & (window(20) | sinks(4))', T=256),
  'block-sparse': dict(mask='causal & bigbird(16, 1, 1, 16)'),
  'bfloat16': dict(mask='causal', dtype='bfloat16'),
}
SLOW = [name for name in CASES if name not in ('grouped', 'packed window')]


def run(text, mask, T=T, K=K, B=B, dtype='float32', **more):
  """(out, gradients of q, k, v and the learned inputs), compiled."""
  fields = attention_inputs(mask, T=T, score=Partial(functools.partial(scaled_dot, scale=0.5)))
  tokens = [f'{side}_{field}' for side in 'qk' for field in ('positions', 'segments')]
  fields |= {name: jnp.resize(fields[name], (B, T)) for name in tokens}

  def out(q, k, v, sinks):
    return kernel(text)(q, k, v, **fields | more | dict(sinks=sinks))

  def pull(*args):
    y, back = jax.vjp(out, *args)
    return y, back(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

  return jax.jit(pull)(*arrays(T, K, B, dtype), more.get('sinks'))


def close(a, b, tolerance=2e-5):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    # A gradient sums many terms, so its error is relative to its size.
    assert np.abs(x - y).max() <= tolerance * max(1, np.abs(y).max())


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in CASES]
)
def test_equals_the_dense_kernel(name):
  case = CASES[name]
  close(run(INTERPRETED, **case), run('dense', **case), 2e-2 if 'dtype' in case else 2e-5)


def run_on_mesh(text, sizes, axes=('data', 'fsdp', 'tensor'), **case):
  mesh = jax.make_mesh(sizes, axes, axis_types=(AxisType.Auto,) * 3)
  names = dict(batch=('data', 'fsdp'), length=('ulysses',), heads=('tensor',), kv_heads=('tensor',), kv=())
  rules = parse_rules(
    {name: ' '.join(axis for axis in taken if axis in axes) for name, taken in names.items()}
  )
  with context(mesh, rules):
    return run(text, **case)


@pytest.mark.slow
@pytest.mark.parametrize(
  'case',
  [
    dict(mask='causal', B=4, **segments(*([(1, 70), (0, 58)], [(1, 128)]) * 2)),
    dict(mask='causal', K=1, sinks=SINKS),  # one key head and two rows, which are not sharded
  ],
  ids=['grouped', 'multi-query'],
)
def test_sharded_equals_one_device(case):
  close(run_on_mesh(INTERPRETED, (2, 2, 2), **case), run('dense', **case))


@pytest.mark.slow
def test_has_whole_rows_where_tokens_are_exchanged_for_heads():
  case = dict(mask='causal', B=4, **segments(*([(1, 70), (0, 58)], [(1, 128)]) * 2))
  close(run_on_mesh(INTERPRETED, (2, 2, 2), axes=('data', 'ulysses', 'tensor'), **case), run('dense', **case))


def test_rejects_heads_that_the_mesh_does_not_divide():
  with pytest.raises(
    ValueError, match='splits its 4 heads into 4 shards, which does not divide its 2 key heads'
  ):
    run_on_mesh(INTERPRETED, (2, 1, 4), mask='causal')


@pytest.mark.parametrize(
  'mask', [text for text in collect.specs('mask') if not collect.mask(text).required_fields]
)
def test_every_mask_compiles_into_the_kernel(mask):
  """Lowered for a TPU, forward and backward: the mask is part of all three kernels."""
  device = AbstractDevice(device_kind='TPU v5 lite', num_cores=1, platform='tpu')
  mesh = AbstractMesh((1,), ('data',), axis_types=(AxisType.Auto,), abstract_device=device)
  fields = AttentionInputs(**attention_inputs(f'window(0) | ({mask})', T=256))

  def loss(q, k, v):
    return kernel('splash').attend(q, k, v, fields)[0].sum()

  with jax.sharding.use_abstract_mesh(mesh):
    lowered = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*arrays(256)).lower(lowering_platforms=('tpu',))
  assert lowered.as_text().count('tpu_custom_call') == 3


def test_hidden_blocks_are_not_visited():
  """A NaN spoils every product, even with zero; the first queries never multiply it."""
  q, k, v = arrays(512)
  v = v.at[:, 128:].set(jnp.nan)
  run = functools.partial(kernel(INTERPRETED), **attention_inputs('causal', T=512))
  out = jax.jit(run)(q, k, v)
  assert np.isfinite(out[:, :128]).all() and np.isnan(out[:, 128:]).all()


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(T=48), 'a multiple of 128, not 48 queries and 48 keys'),
    (dict(layout='arbitrary'), "layout='arbitrary' does not allow for a relative mask"),
    (dict(layout='packed', mask='longformer(9, 1)'), "layout='packed' does not allow for this mask"),
    (dict(mask='~causal'), 'every query must see itself'),
    (dict(mask='prefix'), 'compiles the mask'),
    (dict(bias=Partial(jnp.add)), 'no bias'),
    (dict(score=Partial(jnp.add)), 'no score but'),
    (dict(normalizer='sigmoid'), 'softmax only'),
    (dict(dropout=0.1, dropout_key=jax.random.key(0)), 'dropout'),
    (dict(dtype='float16'), 'bfloat16 or float32, not float16'),
  ],
  ids=lambda x: '' if isinstance(x, str) else ' '.join(x),
)
def test_unsupported_inputs(fields, message):
  fields = dict(mask='causal', T=T, dtype='float32') | fields
  qkv = arrays(fields['T'], dtype=fields.pop('dtype'))
  with pytest.raises(ValueError, match=f'kernel=.splash. cannot be used: .*{message}'):
    kernel(INTERPRETED)(*qkv, **attention_inputs(**fields))


def test_requires_a_tpu():
  assert kernel('splash').unavailable_reason('tpu') is None
  with pytest.raises(ValueError, match='it runs on tpu, not on cpu'):
    kernel('splash')(*arrays(), **attention_inputs(T=T))


def test_block_is_a_multiple_of_the_register_width():
  with pytest.raises(ValueError, match='block=100 must be a multiple of 128 tokens'):
    kernel('splash(100)')
