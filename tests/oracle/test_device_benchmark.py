"""The PyTorch side of `tfm benchmark device` computes what ours does."""

import jax
import numpy as np
import pytest

from tfm.benchmark.attention import Shape, make_kernel
from tfm.benchmark.device import cells


pytestmark = pytest.mark.oracle
torch = pytest.importorskip('torch', reason='needs the extra [oracle]: make oracle')


@pytest.mark.parametrize('variant', ['causal', 'window', 'documents', 'alibi', 'prefix', 'sinks'])
def test_attention_has_the_same_output(variant):
  """T5's bias, a soft cap and FlexAttention, which has no gradient on a CPU, are left out."""
  from tfm.benchmark.device.attention_torch import make_sdpa

  length = 1024 if variant in ('documents', 'window', 'sinks') else 64
  run, (params, *qkv) = make_kernel('dense', variant, length, Shape(batch=1, heads=8, head_width=16))
  ours = jax.jit(run)(params, *qkv)
  q, k, v = (torch.tensor(np.array(x)).transpose(1, 2) for x in qkv)
  if variant == 'alibi':
    q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
  theirs = make_sdpa(variant, length, 8, None)(q, k, v).float().transpose(1, 2).numpy()
  np.testing.assert_allclose(ours, theirs, atol=3e-2 if variant == 'alibi' else 2e-5)


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
  if cell.arguments.get('kernel') == 'flex' or cell.arguments.get('attention') == 'flex':
    pytest.skip('FlexAttention has no gradient on a CPU')
  if cell.arguments.get('variant') == 'soft cap':
    with pytest.raises(ValueError, match='has no soft cap'):
      cell.measure()
  else:
    assert all(value > 0 for value in cell.measure().values())
