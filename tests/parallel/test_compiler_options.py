"""XLA's options of the training step: presets by platform, further options, the environment; and that the
compilers accept them.
"""

import os
import re
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tfm.analysis import gpu_targets, topology
from tfm.config.assemble import Experiment
from tfm.parallel import compiler_options
from tfm.parallel.compiler_options import PRESETS, CompilerSettings
from tfm.runs.train import train
from tfm.training.step import jitted


def settings(flags='none', options=''):
  return CompilerSettings(compiler_options.parse_presets(flags), compiler_options.parse_options(options))


@pytest.mark.parametrize(
  'flags, platform, devices, expected',
  [
    ('none', 'gpu', 8, {}),
    ('auto', 'cpu', 8, {'xla_disable_hlo_passes': 'cse_barrier_expander'}),
    ('auto', 'tpu', 8, {}),
    ('auto', 'gpu', 1, {}),
    ('auto', 'gpu', 8, {'xla_gpu_enable_latency_hiding_scheduler': True}),
    ('auto latency_hiding', 'gpu', 8, {'xla_gpu_enable_latency_hiding_scheduler': True}),
    ('latency_hiding', 'tpu', 1, {'xla_tpu_enable_latency_hiding_scheduler': True}),
    (
      'latency_hiding no_collective_matmul',
      'tpu',
      8,
      {
        'xla_tpu_enable_latency_hiding_scheduler': True,
        'xla_jf_spmd_threshold_for_windowed_einsum_mib': 1_000_000,
      },
    ),
  ],
)
def test_presets_have_options_by_platform(flags, platform, devices, expected):
  assert settings(flags).resolve(platform, devices, {}) == expected


def test_options_override_presets_and_the_environment_overrides_both():
  both = settings('latency_hiding', 'xla_gpu_enable_latency_hiding_scheduler=false xla_gpu_a=3 xla_gpu_b=ON')
  assert both.resolve('gpu', 1, {}) == {
    'xla_gpu_enable_latency_hiding_scheduler': False,
    'xla_gpu_a': 3,
    'xla_gpu_b': 'ON',
  }
  environ = {'XLA_FLAGS': '--xla_gpu_a=4 --xla_gpu_other', 'LIBTPU_INIT_ARGS': '--xla_gpu_b=OFF'}
  assert both.resolve('gpu', 1, environ) == {'xla_gpu_enable_latency_hiding_scheduler': False}


def test_what_is_set_is_described_with_its_reason():
  assert settings('auto').describe('tpu', 8, {}) == ''
  assert settings('auto', 'xla_a=1').describe('gpu', 8, {'XLA_FLAGS': '--xla_b=2'}) == (
    'latency_hiding (chosen by auto), so that collectives run beside computation: '
    'xla_gpu_enable_latency_hiding_scheduler=True; config.compiler.options: xla_a=1; '
    "XLA_FLAGS='--xla_b=2' of the environment"
  )
  environ = {'NCCL_DEBUG': 'INFO', 'CUDA_DEVICE_MAX_CONNECTIONS': '1', 'CUDA_VISIBLE_DEVICES': '0'}
  assert settings().describe('gpu', 8, environ) == (
    "CUDA_DEVICE_MAX_CONNECTIONS='1' of the environment; NCCL_DEBUG='INFO' of the environment"
  )
  assert settings().describe('tpu', 8, environ) == ''
  environ = {'XLA_FLAGS': '--xla_tpu_enable_latency_hiding_scheduler=false'}
  assert 'collectives run beside computation: left to the environment; XLA_FLAGS=' in settings(
    'latency_hiding'
  ).describe('tpu', 8, environ)


@pytest.mark.parametrize(
  'fields, sentence',
  [
    (
      dict(flags='latency'),
      r"config.compiler.flags='latency' names 'latency', .* did you mean 'latency_hiding'",
    ),
    (dict(flags=''), "config.compiler.flags='' names no preset; use 'none'"),
    (dict(flags='none ynnpack'), "presets beside 'none'"),
    (dict(options='xla_a'), r"config.compiler.options='xla_a' has 'xla_a'; write options as name=value"),
    (dict(options='--xla_a=1'), "has '--xla_a=1'; write"),
    (dict(options='xla_a=1 xla_a=2'), 'sets xla_a twice'),
  ],
)
def test_what_cannot_be_parsed_is_refused(tiny, fields, sentence):
  experiment = Experiment(tiny(**{f'compiler.{name}': value for name, value in fields.items()}))
  with pytest.raises(ValueError, match=sentence):
    experiment.compiler


@pytest.mark.parametrize(
  'flags, sentence',
  [
    ('async_collectives', "'async_collectives' has nothing for a cpu, only for a tpu; leave it out"),
    ('ynnpack collective_matmul', "'collective_matmul' has nothing for a cpu, only for a gpu and a tpu"),
  ],
)
def test_a_preset_for_other_platforms_is_refused_before_anything_else(tiny, tmp_path, flags, sentence):
  with pytest.raises(ValueError, match=re.escape(f"config.compiler.flags='{flags}': {sentence}")):
    train(tiny(**{'compiler.flags': flags}), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_presets_that_contradict_each_other_are_refused():
  with pytest.raises(ValueError, match="'collective_matmul' and 'no_collective_matmul' set xla_jf_spmd"):
    settings('collective_matmul no_collective_matmul').resolve('tpu', 8, {})


def test_an_option_that_the_compiler_does_not_know_is_refused_before_anything_else(tiny, tmp_path):
  with pytest.raises(ValueError, match='xla_nonsense=1, which the compiler for a cpu rejects: No such'):
    train(tiny(**{'compiler.options': 'xla_nonsense=1'}), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_the_compiler_accepts_the_options_of_decoding():
  # A process of its own: the tests set the option for all that they compile (tfm/conformance/session.py).
  code = """
from tfm.parallel.compiler_options import WITHOUT_FUSION_EMITTERS, require_accepted
require_accepted(WITHOUT_FUSION_EMITTERS)
print(WITHOUT_FUSION_EMITTERS)
"""
  environ = {name: value for name, value in os.environ.items() if name != 'XLA_FLAGS'}
  run = subprocess.run([sys.executable, '-c', code], env=environ, capture_output=True, text=True, check=False)
  expected = {'xla_cpu_use_fusion_emitters': False} if jax.__version_info__ < (0, 11) else {}
  assert run.stdout.strip() == str(expected), run.stderr


@pytest.mark.parametrize('flags, kept', [('auto', True), ('none', False)])
def test_a_step_keeps_barriers_around_the_operands_of_gradients(tiny, flags, kept):
  """XLA's compiler for CPUs takes them away before it fuses, of this JAX and of later ones."""
  experiment = Experiment(tiny(**{'compiler.flags': flags}))
  model = experiment.build_model(50)
  state = nn.unbox(jax.eval_shape(experiment.build_init(model), jax.random.key(0)))
  rows = jax.ShapeDtypeStruct(
    (experiment.config.training.batch_size, experiment.config.data.length), jnp.int32
  )
  batch = dict.fromkeys(('inputs', 'targets', 'segments', 'positions'), rows)
  step = jitted(experiment.build_step(model), None, experiment.compiler.resolve('cpu', 1, {}))
  text = step.lower(state, batch).compile().as_text()
  assert ('opt-barrier(' in text) == kept


@pytest.mark.slow
def test_the_step_is_compiled_with_them_and_the_log_says_so(tiny, tmp_path, monkeypatch):
  steps, jit = [], jax.jit

  def recorded(f, **kwargs):
    steps.extend(
      [kwargs['compiler_options']] if 'donate_argnums' in kwargs and 'out_shardings' in kwargs else []
    )
    return jit(f, **kwargs)

  monkeypatch.setattr(jax, 'jit', recorded)
  fields = {'training.steps': 1, 'compiler.flags': 'ynnpack'}
  train(tiny(**fields), tmp_path / 'run')
  assert steps == [PRESETS['ynnpack'].options['cpu']]
  log = (tmp_path / 'run' / 'log.txt').read_text()
  assert (
    'compiler: ynnpack, so that products are computed by the library YNNPACK: '
    'xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT; XLA_FLAGS=' in log
  )


def step_for(devices):
  """A lowered gradient of scanned products of sharded arrays; its collectives are those of fsdp."""
  mesh = Mesh(np.array(devices), ('fsdp',))

  def loss(w, x):
    return (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0] ** 2).mean()

  def array(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

  w, x = array((2, 256, 256), None, 'fsdp'), array((128, 256), 'fsdp')
  return jax.jit(jax.grad(loss), out_shardings=w.sharding).lower(w, x)


def platform_presets(platform):
  return [name for name, preset in PRESETS.items() if platform in preset.options]


@pytest.mark.slow
@pytest.mark.parametrize('name', platform_presets('cpu'))
def test_the_compiler_for_cpus_accepts_the_preset_and_computes_the_same(name):
  draw = np.random.default_rng(0)
  w, x = draw.normal(size=(2, 64, 64)).astype('f') / 8, draw.normal(size=(32, 64)).astype('f')

  def gradient(options):
    loss = lambda w: (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0] ** 2).mean()
    return jax.jit(jax.grad(loss), compiler_options=options)(w)

  options = settings(name).resolve('cpu', 1, {})
  np.testing.assert_allclose(gradient(options), gradient({}), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize('generation', ['v5e:2x2', 'v5p:2x2x1', 'v6e:2x2'])
def test_the_compiler_for_tpus_accepts_every_preset_and_the_options_of_decoding(generation):
  if not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  lowered = step_for(topology.devices(generation))
  for name in platform_presets('tpu'):
    lowered.compile(compiler_options=settings(name).resolve('tpu', 4, {}))
  lowered.compile(compiler_options=compiler_options.WITHOUT_FUSION_EMITTERS)
  with pytest.raises(jax.errors.JaxRuntimeError, match='No such compile option'):
    lowered.compile(compiler_options=dict(xla_tpu_nonsense=True))


@pytest.mark.slow
def test_the_compiler_for_gpus_accepts_every_preset_and_the_options_of_decoding():
  if not gpu_targets.is_cuda_plugin_installed():
    pytest.skip("JAX's plugin for CUDA is not installed; pip install -e '.[cuda-compiler]'")
  lowered = step_for(topology.devices('h100:4'))
  for name in platform_presets('gpu'):
    lowered.compile(compiler_options=settings(name).resolve('gpu', 4, {}))
  lowered.compile(compiler_options=compiler_options.WITHOUT_FUSION_EMITTERS)
  with pytest.raises(jax.errors.JaxRuntimeError, match='No such compile option'):
    lowered.compile(compiler_options=dict(xla_gpu_nonsense=True))
