"""The kernel in Pallas, interpreted: equal to dense; lowered for TPUs and GPUs, and compiled for both."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from tests.jaxprs import list_equations
from tests.kernels.on_mesh import RULES, abstract_mesh
from tests.kernels.test_chunked import attention_inputs, kernel
from tests.kernels.test_splash import close, segments
from tfm.analysis import gpu_targets, lowering, plan, topology
from tfm.config.assemble import Experiment
from tfm.config.schema import default_config
from tfm.conformance import collect, test_kernels
from tfm.kernels._block_plan import BlockGrid
from tfm.kernels._tile_order import make_plan
from tfm.kernels.protocol import AttentionInputs
from tfm.layers import locations
from tfm.layers.dot_product import scaled_dot
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.runs.built_model import build


INTERPRETED = 'flash(16, interpret=True)'
B, T, H, K, C = 2, 40, 4, 2, 8
SINKS = jnp.asarray([0.3, -1.0, 2.0, 0.0])
TABLE = jnp.asarray(np.random.default_rng(5).standard_normal((H, 21)), jnp.float32)
PACKED = dict(layout='packed') | segments([(1, 10), (2, 20), (0, 10)], [(1, 40)])
CASES = {
  'grouped': {},
  'multi-query window with sinks': dict(K=1, mask='causal & window(7)', sinks=SINKS),
  'both ways': dict(K=4, mask='window(9)'),
  'packed': dict(mask='causal & window(9)') | PACKED,
  'learned bias': dict(bias=TABLE) | PACKED,
  'learned bias, soft cap and sinks': dict(mask='full', bias=TABLE, soft_cap=1.5, sinks=SINKS),
  'prefix': dict(mask='prefix', k_prefix=jnp.asarray([[5] * T, [17] * T])),
  'no layout': dict(layout='arbitrary'),
  'other keys than queries': dict(T=33, S=50, mask='full'),
  'nothing visible': dict(mask='~causal', bias=TABLE),
  'bfloat16': dict(dtype='bfloat16', bias=TABLE),
}


def by_distance(table, q, k, q_locations, k_locations):
  """A learned bias per head and clipped distance."""
  reach = table.shape[1] // 2
  distance = jnp.clip(locations.distances(q_locations, k_locations), -reach, reach)
  bias = jnp.moveaxis(table[:, distance + reach], 0, 1)
  return bias.reshape(bias.shape[0], k.shape[1], -1, *bias.shape[2:])


def arrays(T=T, S=None, K=K, B=B, C=C, dtype='float32'):
  draw = np.random.default_rng(0)
  shapes = (B, T, H, C), (B, S or T, K, C), (B, S or T, K, C + 4)
  return tuple(jnp.asarray(draw.standard_normal(shape), dtype) for shape in shapes)


def make_attention(text, mask='causal', T=T, S=None, **more):
  """`f(q, k, v, sinks, table) → (out, log-sum-exp)`."""
  fields = attention_inputs(mask, T=T, S=S, score=Partial(functools.partial(scaled_dot, scale=0.5))) | more

  def attend(q, k, v, sinks, table):
    bias = None if table is None else Partial(by_distance, table)
    learned = dict(sinks=sinks, bias=bias, has_relative_bias=True)
    return kernel(text).with_log_sum_exp(q, k, v, **fields | learned)

  return attend


def run(text, K=K, dtype='float32', sinks=None, bias=None, **case):
  """(out, log-sum-exp) and the gradients of q, k, v, sinks and the table of the bias, compiled."""
  attend = make_attention(text, **case)

  def finite(*args):
    out, log_sum_exp = attend(*args)
    return out, jnp.where(log_sum_exp == -jnp.inf, 0, log_sum_exp)

  def pull(*args):
    y, back = jax.vjp(finite, *args)
    return y, back(jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), y))

  sizes = {name: case[name] for name in ('T', 'S') if name in case}
  return jax.jit(pull)(*arrays(K=K, dtype=dtype, **sizes), sinks, bias)


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[pytest.mark.slow] * (name != 'learned bias')) for name in CASES]
)
def test_equals_the_dense_kernel(name):
  case = CASES[name]
  close(run(INTERPRETED, **case), run('dense', **case), 2e-2 if 'dtype' in case else 2e-5)


SUPPORTED = {
  name: case
  for name, case in test_kernels.CASES.items()
  if not case.bias and not case.learned_score and case.score == 'dot' and case.normalizer == 'softmax'
}


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize('name', SUPPORTED)
def test_equals_the_dense_kernel_in_the_cases_of_conformance(name):
  found, expected = (test_kernels.call(text, SUPPORTED[name]) for text in (INTERPRETED, 'dense'))
  close(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize('position', ['alibi', 't5(buckets=8, max_distance=9)', 'kerple'])
def test_positions_by_distance_are_supported(tiny, position):
  """The losses and gradients of a model are those of the dense kernel."""
  found = []
  for text in (INTERPRETED, 'dense'):
    model = build(tiny(**{'model.position': position, 'model.kernel': text, 'model.layers': 1}), vocab=61)
    params = model.init(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, 61, (2, 33))

    def loss(params, model=model, tokens=tokens):
      return jax.nn.log_softmax(model.apply(params, tokens))[..., 0].mean()

    found.append(jax.jit(jax.value_and_grad(loss))(params))
  close(*found)


@pytest.mark.slow
@pytest.mark.parametrize('sizes', [dict(data=2, fsdp=2, tensor=2), dict(data=2, tensor=4)], ids=str)
def test_sharded_equals_one_device(sizes):
  case = dict(bias=TABLE, sinks=SINKS, K=4) | PACKED
  with sharding.context(meshes.make(sizes), sharding.parse_rules(default_config().rules)):
    found = run(INTERPRETED, **case)
  close(found, run('dense', **case))


RINGS = {
  'zigzag': dict(sequence=2, data=2, tensor=2),
  'straight': dict(sequence=4, data=2),
  'no ring': dict(data=2, tensor=4),
}


@pytest.mark.slow
@pytest.mark.parametrize('layout', ['contiguous', 'packed'])
@pytest.mark.parametrize('name', RINGS)
def test_the_steps_of_a_ring(name, layout):
  """Also of rows without tokens for some devices, and with key heads that the mesh does not divide."""
  case = dict(T=128, K=1 if name == 'straight' else 4, sinks=SINKS, soft_cap=2.0)
  case |= dict(mask='causal & window(70)') if name == 'straight' else {}
  case |= (
    dict(layout=layout) | segments([(1, 30), (2, 50), (0, 48)], [(1, 128)]) if layout == 'packed' else {}
  )
  with sharding.context(meshes.make(RINGS[name]), sharding.parse_rules(default_config().rules)):
    found = run('ring(16, 16, step="flash", interpret=True)', **case)
  close(found, run('dense', **case))


@pytest.mark.parametrize(
  'text, message',
  [
    ('ring(step="flashy")', "step='flashy' is unknown; known: auto, chunked, flash"),
    ('ring(step="flash")', 'needs blocks of one size, not queries=512, keys=256'),
    ('ring(48, 48, step="flash")', 'block=48 must be a power of two'),
    ('ring(interpret=True)', "interpret=True is for step='flash', not for step='auto'"),
  ],
)
def test_what_is_no_ring(text, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    kernel(text)


def test_what_a_ring_of_flash_refuses():
  inputs = AttentionInputs(**attention_inputs(T=128))
  ring = kernel('ring(16, 16, step="flash", interpret=True)')
  with sharding.context(meshes.make(dict(sequence=8)), sharding.parse_rules(default_config().rules)):
    reason = ring.unsupported_reason(*arrays(T=128), inputs)
    assert reason == 'its 8 devices need rows of 256 tokens or more, two blocks of 16 each'
    reason = ring.unsupported_reason(*arrays(T=256), inputs.replace(bias=Partial(jnp.add)))
    assert reason == "step='flash' supports no bias on the logits"
  assert 'not on cpu' in kernel('ring(16, 16, step="flash")').unavailable_reason('cpu')


@pytest.mark.parametrize(
  'kind, fields, expected',
  [
    ('NVIDIA H200', {}, 'flash'),
    ('NVIDIA H200', dict(soft_cap=5.0, sinks=SINKS), 'flash'),
    ('NVIDIA H200', dict(bias=Partial(by_distance, TABLE)), 'chunked, not flash: .* no bias'),
    ('NVIDIA H200', dict(T=512), 'chunked, not flash: 256 queries and 256 keys are few'),
    ('NVIDIA H200', dict(T=2**17), 'chunked, not flash: 131,072 queries and 131,072 keys are many'),
    ('NVIDIA H200', dict(dtype='float32'), 'chunked, not flash: .* bfloat16, not 64 in float32'),
    ('NVIDIA L4', {}, 'chunked, not flash: it was measured on an H200'),
    ('TPU v5 lite', {}, 'chunked, not flash: it was measured on an H200'),
  ],
)
def test_the_steps_of_a_ring_that_auto_takes(caplog, kind, fields, expected):
  """Of two devices that are not attached: flash where each has rows as long as those that were measured."""
  fields = dict(T=1024, dtype='bfloat16') | fields
  length, dtype = (fields.pop(name) for name in ('T', 'dtype'))
  platform = 'tpu' if kind.startswith('TPU') else 'gpu'
  qkv = [jax.ShapeDtypeStruct((B, length, H, 64), dtype)] * 3
  mesh = abstract_mesh(kind, platform, sequence=2)
  caplog.set_level('INFO', 'tfm.kernels')
  with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(RULES):
    jax.eval_shape(lambda *qkv: kernel('auto')(*qkv, **attention_inputs(T=length) | fields), *qkv)
  choice, steps = caplog.messages
  assert choice == f'kernel: auto chose ring on {platform}'
  assert re.match(f'kernel: the steps of the ring are {expected}', steps)


@pytest.mark.parametrize('side', ['by_query', 'by_key'])
@pytest.mark.parametrize('mask', ['causal', 'causal & window(20)', 'causal & (window(9) | sinks(3))'])
def test_tiles_that_need_no_mask_come_first(mask, side):
  """Against the visibility of every pair: none without any is visited, and those called plain have all."""
  b, T = 8, 64
  ids = np.asarray([[1] * 30 + [2] * 34, [1] * 8 + [2] * 8 + [0] * 48])
  built, grid = collect.mask(mask), BlockGrid(b, b, T, T)
  lines = getattr(make_plan(built, 'packed', grid), side)
  visits = lines.visits(grid, jnp.asarray(ids), jnp.asarray(ids))
  tokens = np.arange(T)
  shown = np.asarray(built(tokens[:, None], tokens[None]))
  for row, (starts, plain, ends, queries, keys) in enumerate(zip(*(np.asarray(x)[:, 0] for x in visits[:5]))):
    visible = shown & (ids[row][:, None] == ids[row]) & (ids[row] != 0)
    pairs = visible.reshape(T // b, b, T // b, b).sum((1, 3))
    found = {(queries[n], keys[n]) for start, end in zip(starts, ends) for n in range(start, end)}
    assert sum(ends - starts) == len(found) and found >= set(zip(*np.nonzero(pairs)))
    whole = {(queries[n], keys[n]) for start, end in zip(starts, plain) for n in range(start, end)}
    assert whole <= set(zip(*np.nonzero(pairs == b * b)))
    if '&' not in mask:
      assert whole == set(zip(*np.nonzero(pairs == b * b)))


def test_the_loops_of_the_kernels_have_no_branches():
  """Triton loads the next tiles while it computes these, but for loops with branches."""
  attend = make_attention(INTERPRETED, T=64, mask='causal & window(20)')
  loss = lambda *args: attend(*args)[0].sum()  # noqa: E731
  jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1, 2, 4)))(*arrays(T=64), SINKS, TABLE).jaxpr
  kernels = [e.params['jaxpr'] for e in list_equations(jaxpr) if e.primitive.name == 'pallas_call']
  names = [[e.primitive.name for e in list_equations(each)] for each in kernels]
  assert len(names) == 4 and all(each.count('while') == 2 and 'cond' not in each for each in names)


@pytest.mark.slow
def test_hidden_tiles_and_tiles_of_other_documents_are_not_visited():
  """A NaN spoils every product, even with zero; the queries of the clean blocks never multiply it."""
  q, k, v = arrays(T=64)
  spoiled = v.at[:, 16:32].set(jnp.nan)
  packed = dict(layout='packed') | segments([(1, 32), (2, 32)], [(1, 32), (2, 32)])
  for fields, clean in ((dict(mask='causal'), slice(0, 16)), (dict(mask='full') | packed, slice(32, 64))):
    out, _ = jax.jit(make_attention(INTERPRETED, T=64, **fields))(q, k, spoiled, None, None)
    expected, _ = jax.jit(make_attention('dense', T=64, **fields))(q, k, v, None, None)
    np.testing.assert_allclose(out[:, clean], expected[:, clean], atol=2e-5)
    assert np.isnan(out[:, 16:32]).all()


LOWERED = {
  'plain': {},
  'float32': dict(dtype='float32'),
  'learned bias and soft cap': dict(bias=TABLE, soft_cap=2.0),
  'sinks': dict(sinks=SINKS),
  'prefix': dict(mask='prefix', k_prefix=jnp.full((B, 256), 5)),
} | {text: dict(mask=text) for text in collect.specs('mask') if not collect.mask(text).required_fields}


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize('name', LOWERED)
@pytest.mark.parametrize(
  'kind, platform, target',
  [('TPU v5 lite', 'tpu', 'tpu_custom_call'), ('NVIDIA H100 80GB HBM3', 'gpu', '__gpu$xla.gpu.triton')],
)
def test_every_mask_is_lowered_to_mosaic_and_triton(kind, platform, target, name):
  """Forward and backward: the mask is part of three kernels, and the gradient of a bias a fourth."""
  case = dict(mask='causal', dtype='bfloat16') | LOWERED[name]
  mesh = abstract_mesh(kind, platform)
  args = *arrays(T=256, C=64, dtype=case.pop('dtype')), case.pop('sinks', None), case.pop('bias', None)
  attend = make_attention('flash', T=256, **case)

  def loss(*args):
    return sum(x.astype(jnp.float32).sum() for x in attend(*args))

  learned = [i for i, x in enumerate(args) if x is not None]
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.jit(jax.grad(loss, learned)).trace(*args)
    lowered = traced.lower(lowering_platforms=({'gpu': 'cuda'}.get(platform, platform),))
  assert lowered.as_text().count(target) == 3 + (args[4] is not None)


COMPILED = {
  'rope': {'model.position': 'rope'},
  't5': {'model.position': 't5'},
  'ring': {'model.kernel': 'ring(128, 128, step="flash")', 'mesh.sequence': 2},
  'ring by auto': {'model.kernel': 'auto', 'mesh.sequence': 2, 'data.length': 1024},
}


@pytest.mark.slow
@pytest.mark.parametrize('case', COMPILED)
@pytest.mark.parametrize('name', ['v5e:2x2', 'h100:2'])
def test_a_training_step_compiles_for(tiny, name, case):
  """By the compilers of the devices: Mosaic, and Triton within XLA."""
  if name.startswith('h100') and not gpu_targets.is_cuda_plugin_installed():
    pytest.skip("JAX's plugin for CUDA is not installed; pip install -e '.[cuda-compiler]'")
  if name.startswith('v5e') and case == 'ring by auto':
    pytest.skip('flash was not measured on TPUs, so that auto does not choose it there')
  if name.startswith('v5e') and not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  fields = {'data.length': 512, 'model.width': 256, 'model.dtype': 'bfloat16', 'model.kernel': 'flash'}
  config = tiny(**fields | {'data.tokenizer': 'bytes', 'mesh.data': -1} | COMPILED[case])
  devices = topology.devices(name)
  request = lowering.PlanRequest.from_experiment(Experiment(config), None)
  mesh = meshes.make(config.mesh.to_dict(), devices)
  text = plan.compile_step(lowering.lower_training_step(request, mesh)).text
  kernels = 'forward', 'q_gradient', 'kv_gradients', *(['bias_gradient'] if case == 't5' else [])
  assert all(f'flash_{each}/pallas_call' in text for each in kernels)


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(bias=Partial(jnp.add)), 'depends on more than the distance and the head'),
    (dict(bias=Partial(jnp.add), has_relative_bias=True, layout='arbitrary'), "layout='arbitrary'"),
    (dict(score=Partial(jnp.add)), 'no score but'),
    (dict(normalizer='sigmoid'), 'softmax only'),
    (dict(dropout=0.1, dropout_key=jax.random.key(0)), 'dropout'),
  ],
  ids=lambda x: '' if isinstance(x, str) else ' '.join(x),
)
def test_unsupported_inputs(fields, message):
  with pytest.raises(ValueError, match=f'kernel=.flash. cannot be used: .*{message}'):
    kernel(INTERPRETED)(*arrays(), **attention_inputs(T=T) | fields)


def test_what_a_tpu_refuses():
  mesh = abstract_mesh('TPU v5 lite', 'tpu')
  inputs = AttentionInputs(**attention_inputs(T=T))
  long = [jax.ShapeDtypeStruct((1, 2**16, heads, 128), jnp.bfloat16) for heads in (H, K, K)]
  with jax.sharding.use_abstract_mesh(mesh):
    assert 'block=64 must be a multiple of 128' in kernel('flash(64)').unsupported_reason(*arrays(), inputs)
    assert 'takes 67,108,864 bytes' in kernel('flash').unsupported_reason(*long, inputs)
    # 4,096 tokens are half of what a learned bias allows, of which 32 diagonals are visible.
    table = Partial(by_distance, TABLE)
    inputs = inputs.replace(bias=table, has_relative_bias=True)
    for length, is_refused in ((4096, False), (8192, True)):
      rows = [jax.ShapeDtypeStruct((1, length, heads, 128), jnp.bfloat16) for heads in (H, K, K)]
      assert bool(kernel('flash').unsupported_reason(*rows, inputs)) == is_refused
    assert not kernel('flash').unsupported_reason(*rows, inputs.replace(bias=Partial(jnp.add)))


def test_what_a_gpu_refuses():
  """Blocks of 64 keys of wide heads, and of heads half as wide with a bias."""
  inputs = AttentionInputs(**attention_inputs(T=T))
  biased = inputs.replace(bias=Partial(by_distance, TABLE), has_relative_bias=True)
  flash = kernel('flash')
  with jax.sharding.use_abstract_mesh(abstract_mesh('NVIDIA H200', 'gpu')):
    cases = (256, inputs, False), (264, inputs, True), (128, biased, False), (136, biased, True)
    for channels, of, is_refused in cases:
      rows = [jax.ShapeDtypeStruct((1, T, heads, channels), jnp.bfloat16) for heads in (H, K, K)]
      assert bool(flash.unsupported_reason(*rows, of)) == is_refused
    reason = flash.unsupported_reason(*rows, biased)
    assert reason == '64 keys take 32,768 bytes of shared memory, and 16,384 are for them'
    assert not kernel('flash(32)').unsupported_reason(*rows, biased)


def test_arrays_of_different_types_are_refused():
  q, k, v = arrays()
  inputs = AttentionInputs(**attention_inputs(T=T))
  reason = kernel(INTERPRETED).unsupported_reason(q, k.astype('bfloat16'), v, inputs)
  assert reason == 'its queries, keys and values must have one type, not float32, bfloat16 and float32'


def test_requires_an_accelerator_and_a_block_of_a_power_of_two():
  with pytest.raises(ValueError, match='it runs on tpu and gpu, not on cpu'):
    kernel('flash')(*arrays(), **attention_inputs(T=T))
  for block in (8, 100):
    with pytest.raises(ValueError, match=f'block={block} must be a power of two, 16 tokens or more'):
      kernel(f'flash({block})')
