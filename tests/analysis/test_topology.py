"""Names of topologies: what they mean, and what is refused, with one that would do."""

import math
import re
import types

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.analysis import gpu_targets, topology
from tfm.parallel import chip_specs


@pytest.mark.parametrize(
  'name, parsed',
  [
    ('v5e:4x4', ('v5e', (4, 4))),
    ('v5p:4x4x8', ('v5p', (4, 4, 8))),
    ('v4:2x2x1', ('v4', (2, 2, 1))),
    ('tpu7x:4x4x4', ('tpu7x', (4, 4, 4))),
    ('trillium:16x16', ('v6e', (16, 16))),
    ('v5p:8x4x4', ('v5p', (8, 4, 4))),
    ('h100:8', ('h100', (8,))),
    # Google's accelerator types, with the shapes that its documentation of v5p, v5e and v6e gives them. They
    # count the cores of v4, v5p and 7x, of which a chip has two, and the chips of v5e and v6e.
    ('v5p-8', ('v5p', (2, 2, 1))),
    ('v5p-64', ('v5p', (2, 4, 4))),
    ('v5p-128', ('v5p', (4, 4, 4))),
    ('v5p-256', ('v5p', (4, 4, 8))),
    ('v5p-512', ('v5p', (4, 8, 8))),
    ('v5p-1024', ('v5p', (8, 8, 8))),
    ('v5p-2048', ('v5p', (8, 8, 16))),
    ('v5p-4096', ('v5p', (8, 16, 16))),
    ('v5p-8192', ('v5p', (16, 16, 16))),
    ('v5p-12288', ('v5p', (16, 16, 24))),
    ('v4-64', ('v4', (2, 4, 4))),
    ('tpu7x-128', ('tpu7x', (4, 4, 4))),
    ('v5litepod-16', ('v5e', (4, 4))),
    ('v5e-32', ('v5e', (4, 8))),
    ('v6e-256', ('v6e', (16, 16))),
  ],
)
def test_names(name, parsed):
  assert topology.parse_topology(name) == parsed


@pytest.mark.parametrize(
  'name, sentence',
  [
    ('v5p-100', r'no slice: such names count cores, two per chip; use v5p:4x4x4 \(v5p-128\)'),
    ('v5p-127', r'use v5p:4x4x4 \(v5p-128\)'),
    ('v5p-1', r'use v5p:1x1x1 \(v5p-2\)'),
    ('v5e:16', 'lacks the 2 dimensions of v5e; use v5e:4x4'),
    ('v5p:16x16', 'lacks the 3 dimensions of v5p; use v5p:4x8x8'),
    ('v5e-9', r'no slice: such names count chips; use v5e:4x4 \(v5e-16\)'),
    ('v6e-12', 'use v6e:4x4'),
    ('v5e-512', r'use v5e:16x16 \(v5e-256\) with --slices=2'),
    ('v4-20000', r'use v4:16x16x16 \(v4-8192\) with --slices=3'),
    ('v5p:4x39996', r'use v5p:16x20x28 \(v5p-17920\) with --slices=7'),
    ('v5e:4x0', 'use v5e:4x4'),
    ('v5e:12x12', 'is no slice of v5e; use v5e:16x16'),
    ('v5e:32x32', 'is no slice of v5e; use v5e:16x16 .* with --slices=4'),
    # libtpu ends the process for such a shape.
    ('v5p:1000x1000x1000', 'is no slice of v5p; use v5p:16x20x28'),
    ('v9:4x4', 'is unknown; a topology is a TPU generation .v4, v5e, v5p, v6e, tpu7x'),
    (
      'mi300:8',
      "or the GPUs of one host .a100, h100, h200, b200., as h100:8; 'here' uses the attached devices",
    ),
    ('h100', 'lacks the number of GPUs per host, 1 to 16; use h100:8, and --slices=N'),
    ('b200:2x8', 'lacks the number of GPUs per host, 1 to 16; use b200:8'),
    ('h100:0', 'lacks the number of GPUs per host'),
    ('h100:1000', 'lacks the number of GPUs per host'),
  ],
)
def test_refusals(name, sentence):
  with pytest.raises(ValueError, match=sentence):
    topology.parse_topology(name)


@pytest.mark.parametrize(
  'name, slices, described',
  [
    ('v5p:4x4x4', 1, 'v5p:4x4x4, 64 chips (v5p-128, which counts cores, two per chip)'),
    ('v5p-128', 1, 'v5p:4x4x4, 64 chips (v5p-128, which counts cores, two per chip)'),
    ('v5e:16x16', 2, '2 × v5e:16x16, 512 chips (2 × v5e-256, which counts chips)'),
    ('h100:8', 4, '4 × h100:8, 32 GPUs'),
    ('here', 1, 'the attached devices'),
  ],
)
def test_a_name_is_explained_in_chips_and_in_its_maker_s_counting(name, slices, described):
  assert topology.describe_topology(name, slices) == described


PARTS = *'v5p v5e v6e h100 TPU 4 0 -1 1e9 x × : - ٣ \0'.split(' '), '', '9' * 30


@given(st.lists(st.sampled_from(PARTS), max_size=8).map(''.join))
def test_nonsense_is_refused_in_one_sentence(name):
  """… and a suggested name is valid."""
  try:
    generation, sizes = topology.parse_topology(name)
    assert math.prod(sizes) <= topology.MAX_CHIPS
  except ValueError as error:
    message = str(error)
    assert message.startswith(f'--topology={name} ') and '\n' not in message
    if suggested := re.search(r'; use (\S+:[\dx]+)', message.removeprefix(f'--topology={name}')):
      topology.parse_topology(suggested[1])


@pytest.mark.parametrize('generation', topology.GENERATIONS)
@pytest.mark.parametrize('chips', [1, 4, 16, 60, 64, 100, 256, 4096])
def test_the_nearest_has_as_many_chips_or_some_more(generation, chips):
  sizes = topology.nearest_slice(generation, chips)
  chips = min(chips, math.prod(topology.SLICES[generation]))
  assert chips <= math.prod(sizes) <= chips * 1.5 and len(sizes) == topology.GENERATIONS[generation][0]
  assert topology.parse_topology(f'{generation}:{topology.format_shape(sizes)}') == (generation, sizes)


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
