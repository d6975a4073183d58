"""Names of topologies: what they mean, and what is refused, with one that would do."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.analysis import topology_names


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
  assert topology_names.parse_topology(name) == parsed


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
    topology_names.parse_topology(name)


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
  assert topology_names.describe_topology(name, slices) == described


PARTS = *'v5p v5e v6e h100 TPU 4 0 -1 1e9 x × : - ٣ \0'.split(' '), '', '9' * 30


@given(st.lists(st.sampled_from(PARTS), max_size=8).map(''.join))
def test_nonsense_is_refused_in_one_sentence(name):
  """… and a suggested name is valid."""
  try:
    generation, sizes = topology_names.parse_topology(name)
    assert math.prod(sizes) <= topology_names.MAX_CHIPS
  except ValueError as error:
    message = str(error)
    assert message.startswith(f'--topology={name} ') and '\n' not in message
    if suggested := re.search(r'; use (\S+:[\dx]+)', message.removeprefix(f'--topology={name}')):
      topology_names.parse_topology(suggested[1])


@pytest.mark.parametrize('generation', topology_names.GENERATIONS)
@pytest.mark.parametrize('chips', [1, 4, 16, 60, 64, 100, 256, 4096])
def test_the_nearest_has_as_many_chips_or_some_more(generation, chips):
  sizes = topology_names.nearest_slice(generation, chips)
  chips = min(chips, math.prod(topology_names.SLICES[generation]))
  assert chips <= math.prod(sizes) <= chips * 1.5
  assert len(sizes) == topology_names.GENERATIONS[generation][0]
  name = f'{generation}:{topology_names.format_shape(sizes)}'
  assert topology_names.parse_topology(name) == (generation, sizes)
