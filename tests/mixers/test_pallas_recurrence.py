"""The recurrence in Pallas, interpreted: equal to its formula; lowered for TPUs and GPUs, and compiled."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from tfm.analysis import gpu_targets, lowering, plan, topology
from tfm.config.assemble import Experiment
from tfm.config.schema import default_config
from tfm.mixers._recurrence import Pallas, build_recurrence
from tfm.mixers.protocol import Context
from tfm.models import flops
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.runs.built_model import build


KERNEL = Pallas(16, interpret=True)
BY_KERNEL = 'recurrence="pallas(16, interpret=True)"'
# name → (mixer by XLA, and by the kernel, mask)
MIXERS = {
  'mamba2': ('mamba2(state=8, epsilon=0.1)', f'mamba2(state=8, epsilon=0.1, {BY_KERNEL})', 'causal'),
  'gated_delta': ('gated_delta', f'gated_delta({BY_KERNEL})', 'causal'),
  'linear': ('linear', f'linear({BY_KERNEL})', 'causal'),
  'linear, both ways': ('linear', f'linear({BY_KERNEL})', 'full'),
}


def arrays(B=2, T=37, H=4, K=2, C=5, E=7, V=4, decay=1.0, reads=False):
  draw = np.random.default_rng(0)

  def normal(*shape):
    return jnp.asarray(draw.standard_normal(shape), jnp.float32)

  log_decay, first = -decay * jnp.abs(normal(B, T, H)), jnp.asarray(draw.random((B, T)) < 0.1)
  args = normal(B, T, K, C), normal(B, T, K, C), normal(B, T, V, E), log_decay, first, normal(B, H, C, E)
  return *args, 0.1 * normal(B, T, V, C) if reads else None


def token_by_token(q, k, v, log_decay, first, state, read=None):
  H, index = log_decay.shape[2], jnp.arange(q.shape[1])
  q, k, v, read = (x if x is None else jnp.repeat(x, H // x.shape[2], 2) for x in (q, k, v, read))

  def step(carry, token):
    (state, before), (t, q, k, v, log_decay, first, read) = carry, token
    if read is not None:
      before = jnp.where(t % KERNEL.block == 0, state, before)
      v = v - jnp.einsum('bhc,bhce->bhe', read, before)
    state = jnp.where(first[:, None, None, None], 0, state)
    state = jnp.exp(log_decay)[..., None, None] * state + k[..., None] * v[:, :, None]
    return (state, before), jnp.einsum('bhc,bhce->bhe', q, state)

  tokens = jax.tree.map(lambda x: x.swapaxes(0, 1), (q, k, v, log_decay, first, read))
  (state, _), outputs = jax.lax.scan(step, (state, state), (index, *tokens))
  return state, outputs.swapaxes(0, 1)


def pull(scan, q, k, v, log_decay, first, state, read=None):
  """State and outputs, and the gradients of all but `first`, compiled."""

  def run(*args):
    y, back = jax.vjp(lambda q, k, v, g, *more: scan(q, k, v, g, first, *more), *args)
    return y, back(jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape), y))

  return jax.jit(run)(q, k, v, log_decay, state, read)


def close(found, expected, tolerance=1e-5):
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, atol=tolerance * float(jnp.abs(b).max()))


CASES = {
  'shared queries and keys': {},
  'shared values': dict(K=4, V=1),
  'one chunk': dict(T=16),
  'fewer tokens than a chunk': dict(T=3),
  'no decay': dict(decay=0.0),
  'values less what the state holds': dict(reads=True),
  'the same for groups': dict(reads=True, V=2, K=1),
}


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[pytest.mark.slow] * bool(case)) for name, case in CASES.items()]
)
def test_equals_the_recurrence_token_by_token(name):
  args = arrays(**CASES[name])
  close(pull(KERNEL, *args), pull(token_by_token, *args))


@pytest.mark.slow
def test_weak_decays_beside_strong_ones():
  """Differences of cumulative sums around -3,000 would have errors of 1e-4."""
  q, k, v, log_decay, first, state, _ = arrays(T=32, decay=0.01)
  log_decay = log_decay.at[:, ::16].set(-3000.0)
  args = q, k, v, log_decay, jnp.zeros_like(first), state
  close(pull(KERNEL, *args)[0], pull(token_by_token, *args)[0], 2e-6)


def loss_and_gradients(tiny, mixer, **fields):
  """Of a packed row, by the model with a mixer."""
  model = build(tiny(**{'model.mixer': mixer, 'model.layers': 1, **fields}), vocab=61)
  draw = np.random.default_rng(0)
  tokens, sizes = draw.integers(0, 61, (8, 33)), [9, 20, 4]
  segments = np.repeat([[1, 2, 0]], sizes, 1).repeat(8, 0)
  positions = np.concatenate([np.arange(size) for size in sizes])[None].repeat(8, 0)
  context = Context(positions, segments, layout='packed')

  def loss(params):
    logits, _ = model.model.apply({'params': params}, tokens, context)
    [logits] = jax.tree.leaves(logits)
    return (jax.nn.log_softmax(logits)[..., 0] * (segments > 0)).mean()

  return jax.jit(jax.value_and_grad(loss))(model.init(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('name', MIXERS)
def test_a_model_is_that_of_chunks(tiny, name, dtype):
  by_xla, by_kernel, mask = MIXERS[name]
  fields = {'model.dtype': dtype, 'model.position': 'none', 'model.mask': mask}
  if mask == 'full':
    fields |= {'model.architecture': 'encoder', 'objective': 'masked_lm'}
  expected = loss_and_gradients(tiny, by_xla, **fields)
  close(loss_and_gradients(tiny, by_kernel, **fields), expected, 5e-2 if dtype == 'bfloat16' else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('sizes', [dict(data=2, fsdp=2, tensor=2), dict(data=4, tensor=2)], ids=str)
def test_sharded_equals_one_device(sizes):
  args = arrays(B=8, K=1)
  with sharding.context(meshes.make(sizes), sharding.parse_rules(default_config().rules)):
    found = pull(KERNEL, *args)
  close(found, pull(token_by_token, *args))


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize(
  'kind, platform, target',
  [('TPU v5 lite', 'tpu', 'tpu_custom_call'), ('NVIDIA H100 80GB HBM3', 'gpu', '__gpu$xla.gpu.triton')],
)
def test_is_lowered_to_mosaic_and_triton(kind, platform, target, dtype):
  q, k, v, *more = arrays(T=256, C=64, E=64)
  args = *(x.astype(dtype) for x in (q, k, v)), *more

  def loss(*args):
    return sum(x.sum() for x in Pallas()(*args))

  with jax.sharding.use_abstract_mesh(one_device(kind, platform)):
    traced = jax.jit(jax.grad(loss, (0, 1, 2, 3, 5))).trace(*args)
    lowered = traced.lower(lowering_platforms=({'gpu': 'cuda'}.get(platform, platform),))
  assert lowered.as_text().count(target) == 2


@pytest.mark.parametrize('mixer', ['mamba2', 'linear', 'gated_delta'])
def test_the_flops_are_those_of_chunks(tiny, mixer):
  models = (
    build(tiny(**{'model.mixer': text, 'model.position': 'none'}), vocab=61).model
    for text in (mixer, f'{mixer}({BY_KERNEL})')
  )
  assert len({flops.training_flops_per_token(model, 32) for model in models}) == 1


def one_device(kind, platform):
  device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
  return AbstractMesh((1,), ('data',), axis_types=(AxisType.Auto,), abstract_device=device)


@pytest.mark.slow
@pytest.mark.parametrize('mixer', ['mamba2', 'linear', 'gated_delta'])
@pytest.mark.parametrize('name', ['v5e:2x2', 'h100:2'])
def test_a_training_step_compiles_for(tiny, name, mixer):
  """By the compilers of the devices: Mosaic, and Triton within XLA."""
  if name.startswith('h100') and not gpu_targets.is_cuda_plugin_installed():
    pytest.skip("JAX's plugin for CUDA is not installed; pip install -e '.[cuda-compiler]'")
  if name.startswith('v5e') and not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  fields = {'data.length': 512, 'data.tokenizer': 'bytes', 'mesh.data': -1, 'model.width': 256}
  fields |= {
    'model.dtype': 'bfloat16',
    'model.position': 'none',
    'model.mixer': f'{mixer}(recurrence="pallas")',
  }
  config = tiny(**fields)
  request = lowering.PlanRequest.from_experiment(Experiment(config), None)
  mesh = meshes.make(config.mesh.to_dict(), topology.devices(name))
  text = plan.compile_step(lowering.lower_training_step(request, mesh)).text
  assert all(f'recurrence_{each}/pallas_call' in text for each in ('forward', 'backward'))


@pytest.mark.parametrize(
  'text, message',
  [
    ('palace', "'palace' names 'palace'"),
    ('pallas(48)', 'block=48 must be a power of two, 16 tokens or more'),
    ('pallas(8)', 'block=8 must be a power of two'),
  ],
)
def test_what_is_no_recurrence(text, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    build_recurrence(text)


def test_where_it_does_not_run():
  with pytest.raises(ValueError, match="recurrence='pallas' runs on tpu and gpu, not on cpu"):
    Pallas()(*arrays())
  rules = sharding.parse_rules(default_config().rules)
  with sharding.context(meshes.make(dict(sequence=2, data=4)), rules):
    with pytest.raises(ValueError, match='computes whole rows, which mesh.sequence divides'):
      KERNEL(*arrays())
  with sharding.context(meshes.make(dict(tensor=8)), rules):
    with pytest.raises(ValueError, match="cannot divide 2 heads into the mesh's 8 shards"):
      KERNEL(*arrays())
  long = jax.eval_shape(lambda: arrays(T=2**15, C=64, E=64))
  with jax.sharding.use_abstract_mesh(one_device('TPU v5 lite', 'tpu')):
    with pytest.raises(ValueError, match="bytes of a TPU's memory for vectors for a row of one head"):
      jax.eval_shape(Pallas(), *long)
