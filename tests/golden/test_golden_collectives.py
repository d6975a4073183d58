"""Golden texts: the collectives of a training step per mesh, so that an accidental gather shows as a diff.

`pytest tests/golden/test_golden_collectives.py --update-golden -m ''` rewrites them.
"""

import importlib.metadata
import pathlib
import re

import pytest

from tfm.analysis import lowering
from tfm.analysis.collectives import find_collectives
from tfm.config.assemble import Experiment
from tfm.parallel import mesh as meshes


GOLDEN = pathlib.Path(__file__).parent / 'collectives'
FIELDS = {'model.heads': 8, 'model.width': 64, 'model.kernel': 'dense', 'training.loss_chunk': 64}
EXPERTS = {'model.feed_forward': 'mixture_of_experts(experts=8, capacity=1.0)'}
RING = {'model.kernel': 'ring'}  # 'auto' selects it; other kernels all-gather the rows
# name → mesh, fields; only the first runs in the default suite.
STEPS = {
  'data, fsdp and tensor': (dict(data=2, fsdp=2, tensor=2), {}),
  'data': (dict(data=8), {}),
  'fsdp': (dict(fsdp=8), {}),
  'tensor': (dict(tensor=8), {}),
  'sequence': (dict(sequence=8), RING),
  'sequence and fsdp': (dict(fsdp=4, sequence=2), RING),
  'ulysses': (dict(ulysses=8), {'model.kernel': 'chunked(queries=8, keys=8)'}),
  'ulysses and sequence': (dict(ulysses=4, sequence=2), RING),
  'experts': (dict(data=2, expert=4), EXPERTS),
  'stages': (dict(stage=4, data=2), {'model.layers': 4}),
  'stages in rounds': (dict(stage=2, data=2, tensor=2), {'model.layers': 4, 'pipeline.repeats': 2}),
}


def golden_path(name: str) -> pathlib.Path:
  return GOLDEN / f'{name}.txt'


def format_collectives(config, sizes) -> str:
  mesh = meshes.make(sizes)
  compiled = lowering.lower_training_step(
    lowering.PlanRequest.from_experiment(Experiment(config), None), mesh
  ).lowered.compile()
  collectives = find_collectives(compiled.as_text(), mesh.shape)
  return ''.join(f'{collective}\n' for collective in collectives)


@pytest.mark.slow
@pytest.mark.skipif(
  not importlib.metadata.version('jaxlib').startswith('0.10.'), reason="written by jaxlib 0.10's compiler"
)
@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[] if name == next(iter(STEPS)) else pytest.mark.slow) for name in STEPS]
)
def test_collectives_match_the_golden_text(tiny, name, request):
  sizes, fields = STEPS[name]
  text = format_collectives(tiny(**FIELDS | fields), sizes)
  if request.config.getoption('--update-golden'):
    golden_path(name).write_text(text)
  assert golden_path(name).is_file(), f'{name} has no golden text; use --update-golden'
  assert text == golden_path(name).read_text(), (
    f'on {meshes.format_sizes(sizes)} the collectives changed; if intended, use --update-golden'
  )


def test_every_golden_text_has_a_step():
  assert {path.name for path in GOLDEN.glob('*')} == {golden_path(name).name for name in STEPS}


def test_golden_texts_contain_the_gathers_of_fsdp_and_the_all_to_alls_of_experts():
  assert (
    'all-gather over fsdp' in golden_path('fsdp').read_text()
    and 'all-gather' not in golden_path('data').read_text()
  )
  # To the experts and back, forward and backward, in two layers.
  assert 'all-to-all over expert (4): 8 times' in golden_path('experts').read_text()


@pytest.mark.parametrize('name', [name for name, (sizes, _) in STEPS.items() if 'sequence' in sizes])
def test_ring_attention_permutes_keys_and_values_and_never_gathers_rows(name):
  text = golden_path(name).read_text()
  assert 'collective-permute over sequence' in text and not re.search(
    '(all-gather|all-to-all) over [a-z ]*sequence', text
  )
