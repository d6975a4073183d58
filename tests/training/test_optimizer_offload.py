"""config.optimizer.offload: the optimizer's state in host memory, in runs and in programs of compilers."""

import jax
import numpy as np
import pytest

from tfm.analysis import gpu_targets, lowering, plan, topology
from tfm.config.assemble import Experiment
from tfm.config.validate import validate_ensemble
from tfm.parallel import mesh as meshes
from tfm.parallel.host_memory import HOST_MEMORY
from tfm.runs import train
from tfm.training import metrics


MESH = {'mesh.data': 2, 'mesh.fsdp': 4}
CONSTANT = {'optimizer.schedule': 'constant'}


def losses(workdir):
  return [row['loss'] for row in metrics.read(workdir / 'metrics.jsonl') if row['split'] == 'train']


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    {'optimizer.clip': 1.0},
    {
      'model.dtype': 'float16',
      'training.skip_spikes': 3.0,
      'training.gradient_accumulation': 2,
      'training.batch_size': 16,
    },
    {'optimizer.name': 'adafactor', 'optimizer.frozen': 'embedding'},
  ],
  ids=['clip', 'loss scale', 'adafactor'],
)
def test_a_run_is_the_same(tiny, tmp_path, fields):
  for offload in (False, True):
    train.train(tiny(**MESH | fields | {'optimizer.offload': offload}), tmp_path / str(offload))
  expected = losses(tmp_path / 'False')
  assert len(expected) == 6 and expected[-1] != expected[0]
  np.testing.assert_allclose(losses(tmp_path / 'True'), expected, rtol=1e-6)


@pytest.mark.slow
def test_a_run_resumes_with_and_without(tiny, tmp_path, monkeypatch):
  """And its state is where the config says."""
  kinds, fit = [], train.fit

  def recorded(prepared, sharded, stores, state, step, report):
    kinds.append({x.sharding.memory_kind for x in jax.tree.leaves(state.opt_state)})
    fit(prepared, sharded, stores, state, step, report)

  monkeypatch.setattr(train, 'fit', recorded)
  for steps, offload in ((2, True), (4, True), (5, False), (6, True)):
    fields = CONSTANT | {'training.steps': steps, 'optimizer.offload': offload}
    train.train(tiny(**MESH | fields), tmp_path / 'parts')
  train.train(tiny(**MESH | CONSTANT), tmp_path / 'whole')
  device = jax.devices()[0].default_memory().kind
  assert kinds == [{HOST_MEMORY}, {HOST_MEMORY}, {device}, {HOST_MEMORY}, {device}]
  np.testing.assert_allclose(losses(tmp_path / 'parts'), losses(tmp_path / 'whole'), rtol=1e-6)


def test_ensembles_are_refused(tiny):
  with pytest.raises(ValueError, match='config.optimizer.offload=True is not supported by ensembles'):
    validate_ensemble(Experiment(tiny(**{'optimizer.offload': True})), 1)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['v5e:2x2', 'h100:4'])
def test_the_moments_are_in_host_memory_in_the_program_for(tiny, name):
  """Their bytes are free on the device while it computes the gradients, when it needs the most memory."""
  if name.startswith('h100') and not gpu_targets.is_cuda_plugin_installed():
    pytest.skip("JAX's plugin for CUDA is not installed; pip install -e '.[cuda-compiler]'")
  if name.startswith('v5e') and not topology.is_libtpu_installed():
    pytest.skip("libtpu is not installed; pip install -e '.[tpu]'")
  devices, found = topology.devices(name), []
  for offload in (False, True):
    fields = {'data.tokenizer': 'bytes', 'model.width': 256, 'model.kernel': 'dense', 'mesh.fsdp': 4}
    config = tiny(**fields | {'optimizer.offload': offload})
    request = lowering.PlanRequest.from_experiment(Experiment(config), None)
    lowering.validate_request(request, devices, capacity=2**34)
    mesh = meshes.make(config.mesh.to_dict(), devices)
    step = lowering.lower_training_step(request, mesh)
    found.append(plan.analyze_step(step, mesh, plan.compile_step(step)).memory)
  without, offloaded = found
  moments = without.kinds['optimizer']
  assert without.host == 0 and moments <= offloaded.host < 1.4 * moments  # with the padding of layouts
  assert without.needed - offloaded.needed > 0.9 * moments
