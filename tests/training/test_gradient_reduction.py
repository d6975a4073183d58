"""config.training.gradient_reduction: what devices add up between them, in the programs of real compilers."""

import re

import numpy as np
import pytest

from tfm.analysis import gpu_targets, lowering, plan, topology
from tfm.config.assemble import Experiment
from tfm.config.validate import validate_run
from tfm.parallel import mesh as meshes
from tfm.runs.train import train
from tfm.training import metrics


HIDDEN = 1536  # the width of the feed-forward layers, which no mesh here shards and no other axis has
FIELDS = {
  'data.tokenizer': 'bytes',
  'model.dtype': 'bfloat16',
  'model.width': 256,
  'model.feed_forward_width': HIDDEN,
  'model.tie_embeddings': False,
  'training.batch_size': 16,
  'training.loss_chunk': 128,
}
DENSE = {'mesh.data': 2, 'mesh.fsdp': 4}
EXPERTS = {'model.feed_forward': 'mixture_of_experts(experts=4)'} | {
  'mesh.data': 2,
  'mesh.fsdp': 2,
  'mesh.expert': 2,
}


def plan_step(config, name):
  """The compiled text and the plan of the training step."""
  mesh = meshes.make(config.mesh.to_dict(), topology.devices(name))
  request = lowering.PlanRequest.from_experiment(Experiment(config), None)
  step = lowering.lower_training_step(request, mesh)
  compiled = plan.compile_step(step)
  return compiled.text, plan.analyze_step(step, mesh, compiled)


def types_of_reduced_kernels(text):
  """The types of the gradients of feed-forward kernels that devices add up."""
  found = set()
  for line in text.splitlines():
    if op := re.search(r' = (.*?) (?:all-reduce|reduce-scatter)(?:-start)?\(', line) or re.search(
      r'%all-reduce-scatter\S* = (\S+) fusion\(', line
    ):
      arrays = re.findall(r'\b(f32|bf16)\[([\d,]+)\]', op[1])
      found |= {dtype for dtype, shape in arrays if str(HIDDEN) in shape.split(',')}
  return found


@pytest.mark.slow
@pytest.mark.parametrize('fields', [DENSE, EXPERTS], ids=['dense', 'experts'])
@pytest.mark.parametrize('name', ['v5e:2x4', 'h100:8'])
def test_gradients_are_reduced_in_the_type_of_the_config_by_the_compiler_for(tiny, name, fields):
  if name.startswith('h100') and not gpu_targets.is_cuda_plugin_installed():
    pytest.skip("JAX's plugin for CUDA is not installed; pip install -e '.[cuda-compiler]'")
  if name.startswith('v5e') and not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  sent = {}
  for dtype, short in (('float32', 'f32'), ('bfloat16', 'bf16')):
    text, planned = plan_step(tiny(**FIELDS | fields | {'training.gradient_reduction': dtype}), name)
    assert types_of_reduced_kernels(text) == {short}
    sent[dtype] = sum(x.sent for x in planned.collectives if x.kind in ('all-reduce', 'reduce-scatter'))
  assert sent['bfloat16'] < 0.7 * sent['float32']  # tables, norms and routers are reduced in float32


@pytest.mark.parametrize(
  'fields, sentence',
  [
    ({'training.gradient_reduction': 'bf16'}, "='bf16' is unknown; known: float32, bfloat16"),
    (
      {'training.gradient_reduction': 'bfloat16', 'model.dtype': 'float16'},
      "='bfloat16' needs products of that type, and config.model.dtype='float16'; use 'float32'",
    ),
  ],
)
def test_types_that_products_do_not_have_are_refused(tiny, fields, sentence):
  with pytest.raises(ValueError, match=f'config.training.gradient_reduction{sentence}'):
    validate_run(Experiment(tiny(**fields)), 8)


@pytest.mark.slow
def test_a_run_with_gradients_in_bfloat16_learns_as_one_in_float32(tiny, tmp_path):
  losses = {}
  for dtype in ('float32', 'bfloat16'):
    config = tiny(
      **{
        'model.dtype': 'bfloat16',
        'training.gradient_reduction': dtype,
        'optimizer.learning_rate': 1e-2,
        'training.steps': 12,
        'training.gradient_accumulation': 2,
        'mesh.data': 2,
        'mesh.fsdp': 2,
        'mesh.tensor': 2,
      }
    )
    train(config, tmp_path / dtype)
    rows = metrics.read(tmp_path / dtype / 'metrics.jsonl')
    losses[dtype] = [row['loss'] for row in rows if row['split'] == 'train']
  assert losses['float32'][-1] < 0.8 * losses['float32'][0]
  np.testing.assert_allclose(losses['bfloat16'], losses['float32'], rtol=0.02)
