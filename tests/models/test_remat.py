"""Policies of rematerialization by name: what they refuse, and what the programs for TPUs and GPUs store."""

import re

import jax
import jax.numpy as jnp
import pytest

from tests.jaxprs import list_equations
from tfm.analysis import gpu_targets, lowering, plan, topology
from tfm.config.assemble import Experiment
from tfm.config.validate import validate_device, validate_parts
from tfm.models.remat import ELEMENTWISE
from tfm.parallel import host_memory
from tfm.parallel import mesh as meshes
from tfm.runs import built_model


@pytest.mark.parametrize(
  'remat, sentence',
  [
    ('some', "'some' names 'some', which does not exist; known: none, everything, full"),
    ('save()', "'save()' leaves out 'names'"),
    ("save('')", "it has no names; use 'full' to store nothing"),
    ("save('mixer mixer')", "it has 'mixer' twice; leave one out"),
    ("save('mixer', offload='attention mixer')", "it has 'mixer' twice; leave one out"),
    (
      "save('mixer/query')",
      "names 'mixer/query', which nothing in a block has; known: attention, block_input",
    ),
    ("offload('feed_forward/gate')", "names 'feed_forward/gate', which nothing in a block has"),
  ],
)
def test_what_is_no_policy_is_refused(tiny, remat, sentence):
  with pytest.raises(ValueError, match=r'config\.model\.remat=.*' + re.escape(sentence)):
    validate_parts(Experiment(tiny(**{'model.remat': remat})))


@pytest.mark.parametrize(
  'names, fields',
  [
    ('feed_forward/gate', {'model.feed_forward': 'swiglu'}),
    ('feed_forward/router', {'model.feed_forward': 'mixture_of_experts(experts=4)'}),
    ('feed_forward/up', {'model.feed_forward': 'mixture_of_experts(experts=4)'}),
    ('mixer', {'model.mixer': 'mamba2', 'model.position': 'none'}),
    ('attention', {'model.scan': False}),
  ],
)
def test_names_are_those_of_the_model(tiny, names, fields):
  validate_parts(Experiment(tiny(**fields | {'model.remat': f'save({names!r})'})))


# What is stored, or has functions inside that are looked at one by one.
STORED = set(
  'cummax cumsum custom_jvp_call custom_vjp_call dot_general eq gather ge gt is_finite jit le lt name ne '
  'reduce_max reduce_or reduce_sum remat2 scan'.split()
)


@pytest.mark.parametrize(
  'fields',
  [
    {'position': 'rope', 'feed_forward': 'swiglu', 'norm': 'rmsnorm'},
    {'position': 'rope(interleaved=True)', 'feed_forward': 'relu_squared', 'norm': 'dyt'},
    {'position': 't5', 'feed_forward': 'gelu'},
    {'position': 'alibi', 'feed_forward': 'geglu'},
    {'position': 'none', 'mixer': 'mamba2'},
    {'position': 'none', 'mixer': 'gated_delta'},
  ],
)
def test_what_is_computed_element_by_element_is_known_by_name(tiny, fields):
  """A function that JAX gives a primitive of its own, such as stack, would be stored otherwise."""
  model = built_model.build(tiny(**{f'model.{name}': value for name, value in fields.items()}), vocab=61)
  params = jax.eval_shape(lambda: model.init(jax.random.key(0)))
  tokens = jnp.zeros((2, 16), jnp.int32)
  jaxpr = jax.make_jaxpr(lambda params: model.apply(params, tokens))(params).jaxpr
  assert {each.primitive.name for each in list_equations(jaxpr)} <= STORED | ELEMENTWISE


def test_devices_without_host_memory_are_refused(tiny, monkeypatch):
  monkeypatch.setattr(host_memory, 'HOST_MEMORY', 'no_such_memory')
  validate_device(Experiment(tiny(**{'model.remat': "save('mixer')"})), jax.devices()[0], 1)
  with pytest.raises(
    ValueError, match='config.model.remat=.* needs memory of kind .* for this cpu; leave it'
  ):
    validate_device(Experiment(tiny(**{'model.remat': "offload('mixer')"})), jax.devices()[0], 1)


def plan_step(config, devices):
  """The compiled text and the memory of the training step."""
  request = lowering.PlanRequest.from_experiment(Experiment(config), None)
  lowering.validate_request(request, devices, capacity=2**34)
  mesh = meshes.make(config.mesh.to_dict(), devices)
  step = lowering.lower_training_step(request, mesh)
  compiled = plan.compile_step(step)
  return compiled.text, plan.analyze_step(step, mesh, compiled).memory


FIELDS = {
  'data.tokenizer': 'bytes',
  'data.length': 128,
  'model.dtype': 'bfloat16',
  'model.width': 128,
  'model.heads': 1,
  'model.layers': 8,
  'model.kernel': 'dense',
  'training.batch_size': 64,
  'training.loss_chunk': 512,
  'mesh.fsdp': 4,
}


@pytest.mark.slow
@pytest.mark.parametrize('name', ['v5e:2x2', 'h100:4'])
def test_what_is_offloaded_is_in_host_memory_in_the_program_for(tiny, name):
  """Of every layer 16 rows of 128 tokens of 128 channels in bfloat16: 4 MiB for all layers."""
  if name.startswith('h100') and not gpu_targets.is_cuda_plugin_installed():
    pytest.skip("JAX's plugin for CUDA is not installed; pip install -e '.[cuda-compiler]'")
  if name.startswith('v5e') and not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  devices, array = topology.devices(name), 8 * 16 * 128 * 128 * 2
  found = {}
  for remat in ('full', "save('mixer')", "save('mixer/q', offload='block_input mixer')"):
    _, found[remat] = plan_step(tiny(**FIELDS | {'model.remat': remat}), devices)
  host = [memory.host for memory in found.values()]
  assert host == [0, 0, 2 * array]
  assert found['full'].needed < found["save('mixer')"].needed


@pytest.mark.slow
def test_the_fused_kernel_of_a_gpu_that_is_stored_does_not_run_again(tiny):
  if not gpu_targets.is_cuda_plugin_installed():
    pytest.skip("JAX's plugin for CUDA is not installed; pip install -e '.[cuda-compiler]'")
  runs, host = {}, {}
  for remat in ('full', "save('attention')", "offload('attention')"):
    config = tiny(**FIELDS | {'model.kernel': 'cudnn', 'model.remat': remat})
    text, memory = plan_step(config, topology.devices('h100:4'))
    runs[remat], host[remat] = len(re.findall(r'"__cudnn\$fmhaSoftmax"', text)), memory.host
  assert list(runs.values()) == [2, 1, 1]
  out, log_sum_exp = 8 * 16 * 128 * 128 * 2, 8 * 16 * 128 * 4
  assert list(host.values()) == [0, 0, out + log_sum_exp]
