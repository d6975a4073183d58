"""Devices to compile for: without their compilers, and how many there are."""

import types

import jax
import pytest

from tfm.analysis import gpu_targets, topology
from tfm.parallel import chip_specs


def test_without_libtpu(monkeypatch):
  monkeypatch.setattr(topology, 'is_libtpu_installed', lambda: False)
  with pytest.raises(
    ValueError, match=r"needs libtpu, .* not installed; pip install -e '.\[tpu\]', or --topology=here"
  ):
    topology.devices('v5e:4x4')


def test_without_the_plugin_for_cuda(monkeypatch):
  monkeypatch.setattr(gpu_targets, 'is_cuda_plugin_installed', lambda: False)
  with pytest.raises(
    ValueError,
    match=r"needs JAX's CUDA plugin, which is not installed; pip install -e '.\[cuda-compiler\]', or",
  ):
    topology.devices('h100:8')


@pytest.mark.parametrize('name', ['v5e:2x2', 'h100:8'])
def test_what_is_compiled_for_others_is_not_kept(name, monkeypatch):
  """Without them it could not be read back, and JAX would warn of each."""
  names = (topology, 'is_libtpu_installed'), (gpu_targets, 'is_cuda_plugin_installed')
  for module, function in names:
    monkeypatch.setattr(module, function, lambda: True)
  monkeypatch.setattr(topology, 'ENVIRONMENT', {})
  monkeypatch.setattr(
    topology.topologies, 'get_topology_desc', lambda **_: types.SimpleNamespace(devices=['one'])
  )
  monkeypatch.setattr(gpu_targets, 'devices', lambda *_: ['one'])
  stored = jax.config.jax_enable_compilation_cache
  try:
    assert topology.devices(name) == ['one'] and not jax.config.jax_enable_compilation_cache
  finally:
    jax.config.update('jax_enable_compilation_cache', stored)


@pytest.mark.parametrize('name', gpu_targets.GPUS)
def test_the_compiler_gets_a_gpu_as_its_maker_describes_it(name):
  gpu = gpu_targets.GPUS[name]
  chip, text = chip_specs.find_chip(gpu.kind), gpu_targets.target_description(gpu)
  assert chip.name.lower().startswith(name) and text.count('{') == text.count('}') == 3
  assert f'cuda_compute_capability {{ major: {chip.capability.replace(".", " minor: ")} }}' in text
  for field, value in (
    ('device_memory_size', chip.memory),
    ('memory_bandwidth', int(chip.bandwidth)),
    ('core_count', gpu.cores),
  ):
    assert f'  {field}: {value}\n' in text


@pytest.mark.parametrize(
  'name, slices, sentence',
  [
    ('here', 2, 'needs a topology'),
    ('here', 0, 'must be at least 1'),
    ('v5e:4x4', 0, 'must be at least 1'),
    ('v5e:4x4', -(10**9), 'must be at least 1'),
    ('v5e:4x4', 10**9, 'exceed the 65,536 chips that can be planned for; use at most 4,096'),
    ('v5p-8192', 17, 'use at most 16'),
    ('h100:8', 10_000, 'use at most 8,192'),
  ],
)
def test_slices(name, slices, sentence):
  with pytest.raises(ValueError, match=sentence):
    topology.devices(name, slices)
