"""Tokens exchanged for heads: attention equals that of one device, with any kernel, and gathers nothing."""

import pytest

from tests.kernels.on_mesh import ALL_QUERIES, RULES, call_on_mesh, function_on_mesh
from tfm.analysis.collectives import find_collectives
from tfm.conformance.test_kernels import CASES, DROPPED, TOLERANCE, Case, call, close
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


# Four heads: over tensor and ulysses, over ulysses alone, and rows over both kinds of axes.
SIZES = [dict(ulysses=2, tensor=2, data=2), dict(ulysses=4, data=2), dict(ulysses=2, sequence=2, tensor=2)]
QUICK = 'multi-head', 'multi-query window', 'learned score', 'sinks'


@pytest.mark.sampled(2)
@pytest.mark.parametrize('sizes', SIZES, ids=meshes.format_sizes)
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name in (*ALL_QUERIES, 'one query', 'few queries')
  ],
)
def test_equals_dense_on_one_device(name, sizes):
  case = CASES[name]
  text = 'chunked(queries=2, keys=3)' if case.has_blockwise_bias else 'dense'
  if 'sequence' in sizes and name in ALL_QUERIES:
    text = text.replace('chunked', 'ring')
  close(call_on_mesh(sizes, text, case), call('dense', case), TOLERANCE['float32'])


@pytest.mark.parametrize('name', ['dropout', pytest.param('dropout with sinks', marks=pytest.mark.slow)])
def test_drops_the_weights_that_one_device_drops(name):
  case = DROPPED[name]
  close(call_on_mesh(SIZES[0], 'chunked(queries=2, keys=3)', case), call('dense', case), TOLERANCE['float32'])


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_a_kernel_that_needs_whole_rows_has_them(kv_heads):
  """cuDNN's, which JAX also computes without a GPU: on each device all tokens, and one head of four."""
  case = Case(kv_heads=kv_heads, mask='causal & window(4)', layout='contiguous')
  close(call_on_mesh(SIZES[0], 'cudnn("xla")', case), call('dense', case), TOLERANCE['float32'])


@pytest.mark.parametrize(
  'name, text',
  [
    ('multi-head', 'chunked(queries=4, keys=3)'),
    ('multi-query window', 'chunked'),
    pytest.param('multi-head', 'chunked', marks=pytest.mark.slow),
    pytest.param('multi-query window', 'chunked(queries=4, keys=3)', marks=pytest.mark.slow),
  ],
)
def test_nothing_is_gathered(name, text):
  """q, k, v and the output are exchanged, and their gradients."""
  run, arguments = function_on_mesh(text, CASES[name])
  mesh = meshes.make(SIZES[1])
  with sharding.context(mesh, RULES):
    text = run.lower(*arguments).compile().as_text()
  found = [each for each in find_collectives(text, mesh.shape) if 'ulysses' in each.axes]
  assert [(each.kind, each.count) for each in found] == [('all-to-all', 4 + 4)], found


def test_rejects_heads_that_the_mesh_does_not_divide():
  with pytest.raises(
    ValueError,
    match='config.mesh.tensor × config.mesh.ulysses = 8 exchanges tokens for 4 heads, which do not divide '
    'over 8 devices; change the heads or config.mesh.ulysses, or shard rows with config.mesh.sequence',
  ):
    call_on_mesh(dict(ulysses=4, tensor=2), 'chunked', CASES['multi-head'])
