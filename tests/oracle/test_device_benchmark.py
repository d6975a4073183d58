"""The PyTorch side of `tfm benchmark device` computes what ours does."""

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tfm.benchmark.attention import Shape, make_kernel, make_mixer
from tfm.benchmark.device import cells


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')
from tests.oracle.test_attention import load_fla_reference  # noqa: E402
from tfm.benchmark.device import attention_torch, mixers_fla  # noqa: E402


@pytest.mark.parametrize('variant', ['causal', 'window', 'documents', 'alibi', 'prefix', 'sinks'])
def test_attention_has_the_same_output(variant):
  """T5's bias and a soft cap are left out."""
  length = 1024 if variant in ('documents', 'window', 'sinks') else 64
  run, (params, *qkv) = make_kernel('dense', variant, length, Shape(batch=1, heads=8, head_width=16))
  ours = jax.jit(run)(params, *qkv)
  q, k, v = (torch.tensor(np.array(x)).transpose(1, 2) for x in qkv)
  if variant == 'alibi':
    q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
  theirs = attention_torch.make_sdpa(variant, length, 8, None)(q, k, v).float().transpose(1, 2).numpy()
  np.testing.assert_allclose(ours, theirs, atol=3e-2 if variant == 'alibi' else 2e-5)


@pytest.mark.parametrize('variant', cells.VARIANTS)
def test_flex_attention_has_the_same_output(variant):
  """Not compiled, as it has no gradient on a CPU, with the mask and the score's change of every variant."""
  length, heads = 1024 if variant in ('documents', 'window', 'sinks') else 64, 8
  run, (params, *qkv) = make_kernel('dense', variant, length, Shape(batch=1, heads=heads, head_width=16))
  table = torch.randn(32, heads, generator=torch.manual_seed(0))
  if variant == 't5':
    [leaf] = jax.tree.leaves(params)
    params = jax.tree.map(lambda _: table.numpy().reshape(leaf.shape), params)
  ours = jax.jit(run)(params, *qkv)
  attend = attention_torch.make_flex(variant, length, heads, table, compiled=False)
  theirs = attend(*(torch.tensor(np.array(x)).transpose(1, 2) for x in qkv)).transpose(1, 2).numpy()
  np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_the_llama_has_as_many_parameters():
  from tfm.analysis import lowering
  from tfm.benchmark.device import step, step_torch

  sizes = cells.SMOKE
  request = lowering.PlanRequest.from_experiment(step.make_experiment(32, 2, sizes.model), sizes.vocab)
  net = step_torch.Llama(sizes.vocab, 32, None, **step_torch.FIELDS | dict(sizes.model))
  ours = sum(x.size for x in jax.tree.leaves(request.state.params))
  assert ours == sum(x.numel() for x in net.parameters())


@pytest.mark.parametrize(
  'cell', [cell for cell in cells.list_cells(cells.SMOKE) if 'torch' in cell.packages], ids=str
)
def test_cells_run(cell):
  if cell.function.startswith('mixers_fla'):
    pytest.skip('the recurrences of fla need a GPU')
  if cell.arguments.get('kernel') == 'flex' or cell.arguments.get('attention') == 'flex':
    pytest.skip('FlexAttention has no gradient on a CPU')
  assert all(value > 0 for value in cell.measure().values())


PROJECTIONS = dict(b='B', c='C')


def ours_of(theirs, ours, mixer):
  """Our value of a parameter of theirs, in its layout."""
  part, *rest = theirs.split('.')
  part = PROJECTIONS.get(part, part)
  if part == 'rate':
    name = dict(project='dt' if mixer == 'mamba2' else 'alpha').get(rest[0], rest[0])
    return ours[name] if name in ours else ours[f'{name}.kernel'].T
  if rest[:1] == ['convolution']:
    value = ours[f'{part}_convolution.{rest[1]}']
    return value if rest[1] == 'bias' else value.reshape(len(value), -1).T
  if theirs in ('norm.weight', 'skip', 'scale'):
    return ours[{'norm.weight': 'norm.scale', 'skip': 'D'}.get(theirs, theirs)]
  kernel = ours[f'{"z" if (mixer, part) == ("mamba2", "gate") else part}.kernel']
  return kernel.reshape(-1, kernel.shape[-1]).T if part == 'out' else kernel.reshape(len(kernel), -1).T


@pytest.mark.parametrize('mixer', cells.FLA_MIXERS)
def test_recurrences_of_fla_are_in_layers_like_ours(mixer):
  """With fla's recurrences in PyTorch and our parameters, its layers compute what ours do."""
  operator, name = dict(
    linear=('linear_attn', 'naive_recurrent_linear_attn'),
    gated_delta=('gated_delta_rule', 'naive_chunk_gated_delta_rule'),
    mamba2=('simple_gla', 'naive_chunk_simple_gla'),
  )[mixer]
  naive = getattr(load_fla_reference(operator), name)
  run, (params, x) = make_mixer(
    dict(mixer=mixer, position='none'), 64, Shape(batch=2, heads=2, head_width=16)
  )
  draw = np.random.default_rng(0)
  params = jax.tree.map(lambda p: p + 0.1 * draw.standard_normal(p.shape).astype(np.float32), params)
  flat = {'.'.join(path): np.asarray(value) for path, value in flatten_dict(params['params']).items()}
  layer = mixers_fla.LAYERS[mixer](naive, 32, 2)
  assert sum(x.size for x in flat.values()) == sum(p.numel() for p in layer.parameters())
  with torch.no_grad():
    for name, parameter in layer.named_parameters():
      parameter.copy_(torch.tensor(np.ascontiguousarray(ours_of(name, flat, mixer))).reshape(parameter.shape))
    theirs = layer(torch.tensor(np.array(x))).numpy()
  np.testing.assert_allclose(jax.jit(run)(params, x), theirs, atol=2e-5 * np.abs(theirs).max())
