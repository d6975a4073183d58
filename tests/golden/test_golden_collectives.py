"""Golden text: what the devices of a few meshes tell each other in a training step, so that an accidental gather shows as a diff.

`pytest tests/golden/test_golden_collectives.py --update-golden -m ''` rewrites it.
"""

import importlib.metadata
import pathlib
import re

import pytest

from tfm.analysis import steps
from tfm.analysis.collectives import find_collectives
from tfm.config.assemble import Experiment
from tfm.parallel import mesh as meshes


GOLDEN = pathlib.Path(__file__).parent / 'collectives'
FIELDS = {'model.heads': 8, 'model.width': 64, 'model.kernel': 'dense', 'training.loss_chunk': 64}
EXPERTS = {'model.feed_forward': 'mixture_of_experts(experts=8, capacity=1.0)'}
RING = {'model.kernel': 'ring'}  # which 'auto' takes there; another would gather the rows
# name → mesh, fields; the first is the default suite's.
STEPS = {
  'data, fsdp and tensor': (dict(data=2, fsdp=2, tensor=2), {}),
  'data': (dict(data=8), {}),
  'fsdp': (dict(fsdp=8), {}),
  'tensor': (dict(tensor=8), {}),
  'sequence': (dict(sequence=8), RING),
  'sequence and fsdp': (dict(fsdp=4, sequence=2), RING),
  'experts': (dict(data=2, expert=4), EXPERTS),
  'stages': (dict(stage=4, data=2), {'model.layers': 4}),
  'stages in rounds': (dict(stage=2, data=2, tensor=2), {'model.layers': 4, 'pipeline.repeats': 2}),
}


def file(name: str) -> pathlib.Path:
  return GOLDEN / f'{name}.txt'


def text(config, sizes) -> str:
  mesh = meshes.make(sizes)
  compiled = steps.lower_training_step(
    steps.PlanRequest.from_experiment(Experiment(config), None), mesh
  ).lowered.compile()
  found = find_collectives(compiled.as_text(), mesh.shape)
  return ''.join(f'{one}\n' for one in found)


@pytest.mark.skipif(
  not importlib.metadata.version('jaxlib').startswith('0.10.'), reason="written by jaxlib 0.10's compiler"
)
@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[] if name == next(iter(STEPS)) else pytest.mark.slow) for name in STEPS]
)
def test_collectives_of_the_training_step(tiny, name, request):
  sizes, fields = STEPS[name]
  found = text(tiny(**FIELDS | fields), sizes)
  if request.config.getoption('--update-golden'):
    file(name).write_text(found)
  assert file(name).is_file(), f'no golden text of {name}; --update-golden writes it'
  assert found == file(name).read_text(), (
    f'on {meshes.format_sizes(sizes)} devices tell each other something else; if so meant, --update-golden'
  )


def test_no_golden_text_without_its_step():
  assert {path.name for path in GOLDEN.glob('*')} == {file(name).name for name in STEPS}


def test_a_gather_would_be_told():
  """The text tells by which axis, how often and how much: of two layers' parameters those that fsdp cuts."""
  assert 'all-gather over fsdp' in file('fsdp').read_text() and 'all-gather' not in file('data').read_text()
  assert (
    'all-to-all over expert (4): 8 times' in file('experts').read_text()
  )  # there and back, in the gradient too, in two layers


@pytest.mark.parametrize('name', [name for name, (sizes, _) in STEPS.items() if 'sequence' in sizes])
def test_keys_and_values_go_round_and_rows_are_never_gathered(name):
  found = file(name).read_text()
  assert 'collective-permute over sequence' in found and not re.search(
    '(all-gather|all-to-all) over [a-z ]*sequence', found
  )
