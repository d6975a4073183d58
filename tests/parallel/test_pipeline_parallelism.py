"""The pipeline: what comes out of it is what one device computes, and stages hold only their layers."""

import dataclasses
import functools
import math
import shutil
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.training.steps import LENGTH, VOCAB, assert_trees_close, batch, sgd, take_steps
from tests.training.test_expert_step import EXPERTS
from tfm.analysis.collectives import find_collectives
from tfm.config import mesh_constraints
from tfm.config.assemble import Experiment
from tfm.mixers.protocol import ATTENTION, Context
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.parallel.pipeline_parallelism import plan_schedule
from tfm.runs.train import train
from tfm.training import metrics
from tfm.training import state as states
from tfm.training.step import jitted, train_step


DEEP = {'model.layers': 4}


@dataclasses.dataclass
class Compiled:
  """The training step of a config as XLA made it for a mesh."""

  config: Any
  sizes: dict[str, int]

  def __post_init__(self):
    config, training = self.config, self.config.training
    model, (optimizer, rate) = Experiment(config).build_model(VOCAB), Experiment(config).build_optimizer()
    self.mesh, self.rules = (
      meshes.make(self.sizes, jax.devices()[: math.prod(self.sizes.values())]),
      sharding.parse_rules(config.rules),
    )
    self.make = states.init(model, optimizer, (training.batch_size, config.data.length), False)
    boxed = states.abstract_state(self.make)
    self.where = states.state_shardings(boxed, self.mesh, self.rules)
    self.split = sharding.batch_sharding(self.mesh, self.rules)

    def placed(x, where):
      return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    state = jax.tree.map(placed, nn.unbox(boxed), self.where)
    rows = {name: placed(x, self.split) for name, x in batch(training.batch_size, config.data.length).items()}
    with sharding.context(self.mesh, self.rules):
      step = jitted(
        train_step(model, Experiment(config).objective, optimizer, rate, training.gradient_accumulation),
        self.where,
      )
      self.step = step.lower(state, rows).compile()

  def over_stages(self, kind):
    """(how often, bytes) of what goes between stages, and other axes too perhaps."""
    found = [
      c
      for c in find_collectives(self.step.as_text(), self.mesh.shape)
      if c.kind == kind and 'stage' in c.axes
    ]
    return sum(c.count for c in found), sum(c.bytes for c in found)

  def run(self):
    """(metrics, state) after a step."""
    (state,) = states.init_states(self.make, [self.config.seed], self.where, self.mesh, self.rules)
    state, metrics = self.step(state, jax.device_put(batch(), self.split))
    return jax.tree.map(float, metrics), state


@pytest.fixture(scope='module')
def one_device(tiny):
  return functools.cache(lambda **fields: take_steps(sgd(tiny, **DEEP | fields)))


def equal_on(tiny, one_device, mesh, model={}, pipe={}, alone=None):
  """Losses, what layers report and gradients (plain gradient descent shows them) of a mesh are those of one
  device.
  """
  (got,), state = take_steps(sgd(tiny, **DEEP | model, **pipe), mesh=mesh)
  (target,), expected = one_device(**model, **(alone or {}))
  assert got == pytest.approx(target, rel=2e-6)
  assert_trees_close(state.params, expected.params, rtol=1e-5, atol=1e-6)
  return state


@pytest.mark.slow
def test_rounds_over_all_axes_are_one_device(tiny, one_device):
  """The representative of the default suite: what comes out, where it lies, and what is sent for it."""
  result = Compiled(sgd(tiny, **DEEP, **{'pipeline.repeats': 2}), dict(stage=2, data=2, tensor=2))
  got, state = result.run()
  (target,), expected = one_device()
  assert got == pytest.approx(target, rel=2e-6)
  assert_trees_close(state.params, expected.params, rtol=1e-5, atol=1e-6)
  cut_over_stages(state.params, 2)
  stays(result)


def cut_over_stages(tree, stages):
  for path, x in jax.tree.leaves_with_path(tree['stack']['layers']):
    assert {shard.data.shape[0] for shard in x.addressable_shards} == {x.shape[0] // stages}, path


def stays(result):
  """Activations move on, in every iteration, and stacked parameters stay.

  What all stages add up is what comes out, the gradients of what went in and of what all layers share, and
  the norm of the gradients: none of it in the loop. As fsdp cuts it, XLA may gather the embedding over stages
  instead, which all have.
  """
  plan = mesh_constraints.pipeline_schedule(result.config, dict.fromkeys(meshes.AXES, 1) | result.sizes)
  assert result.over_stages('collective-permute')[0] >= 2 * plan.iterations
  assert result.over_stages('all-reduce')[0] <= 8
  times, size = result.over_stages('all-gather')
  assert (
    times <= 3 and size <= 3 * 4 * 128 * result.config.model.width and (not times or 'fsdp' in result.sizes)
  )
  assert result.over_stages('all-to-all') == result.over_stages('reduce-scatter') == (0, 0)


@pytest.mark.parametrize(
  'mesh, fields',
  [
    (dict(stage=4), {}),
    (dict(stage=4, data=2), {}),
    (dict(stage=2, fsdp=2, tensor=2), {'pipeline.repeats': 2}),
    (dict(stage=4, data=2), {'model.layers': 8, 'pipeline.repeats': 2}),
    (dict(stage=2, fsdp=2), {'model.position': 't5'}),
  ],
  ids=str,
)
@pytest.mark.slow
def test_activations_move_on_and_parameters_stay(tiny, mesh, fields):
  result = Compiled(sgd(tiny, **DEEP | fields, **{'training.batch_size': 16}), mesh)
  stays(result)


@pytest.mark.slow
def test_moments_are_cut_over_stages_too(tiny):
  result = Compiled(tiny(**DEEP), dict(stage=4, fsdp=2))
  _, state = result.run()
  cut_over_stages(state.params, 4)
  moments = [
    x for x in jax.tree.leaves(state.opt_state, is_leaf=lambda x: isinstance(x, dict)) if isinstance(x, dict)
  ]
  assert len(moments) == 2
  for tree in moments:
    cut_over_stages(tree, 4)


MESHES = [
  (mesh, pipe)
  for pipe in ({}, {'pipeline.repeats': 2})
  for mesh in (
    dict(stage=2, data=4),
    dict(stage=2, data=2, tensor=2),
    dict(stage=2, fsdp=4),
    dict(stage=2, sequence=2, fsdp=2),
  )
]


MESHES += [
  (dict(stage=4, data=2), {}),
  (dict(stage=4, tensor=2), {}),
  (dict(stage=4, fsdp=2), {'pipeline.microbatches': 2}),
  (dict(stage=2, data=2, tensor=2), {'pipeline.microbatches': 4, 'pipeline.repeats': 2}),
  (dict(stage=2, data=2, tensor=2), {'rules.vocab': 'tensor stage'}),
]


@pytest.mark.sampled(0)
@pytest.mark.parametrize('mesh, pipe', MESHES, ids=str)
def test_every_schedule_is_one_device(tiny, one_device, mesh, pipe):
  equal_on(tiny, one_device, mesh, pipe=pipe)


@pytest.mark.slow
def test_more_microbatches_than_stages_in_several_rounds(tiny, one_device):
  equal_on(tiny, one_device, dict(stage=4, data=2), {'model.layers': 8}, {'pipeline.repeats': 2})


MODELS = {
  'shared bias': {'model.position': 't5'},
  'learned places': {'model.position': 'learned'},
  'remat': {'model.remat': 'full'},
  'dots': {'model.remat': 'dots_with_no_batch_dims'},
  'names': {'model.remat': "save('mixer/q', offload='attention block_input')"},
  'accumulation': {'training.gradient_accumulation': 2},
  'cosine score': {'model.score': 'cosine'},  # has no gradient at zero
  'mamba': {'model.mixer': 'mamba', 'model.position': 'none'},
  'Canon layers': {'model.canon': 'ABCD'},
  'value residual': {'model.value_residual': 'gated'},
  'streams': {'model.residual': 'hyper_connections(2)'},
  'post norm': {'model.norm_placement': 'post', 'model.norm': 'rmsnorm'},
}


@pytest.mark.sampled(0)
@pytest.mark.parametrize('fields', MODELS.values(), ids=MODELS)
def test_every_model_is_one_device(tiny, one_device, fields):
  equal_on(tiny, one_device, dict(stage=2, data=2, tensor=2), fields, {'pipeline.repeats': 2})


@pytest.mark.parametrize(
  'mesh, pipe',
  [
    (dict(stage=2, data=2, tensor=2), {'pipeline.microbatches': 4}),
    (dict(stage=2, expert=4), {'pipeline.microbatches': 2, 'pipeline.repeats': 2}),
  ],
  ids=str,
)
@pytest.mark.slow
def test_layers_report_of_their_work_alone(tiny, one_device, mesh, pipe):
  """Losses and metrics of mixtures are means over microbatches, as those of accumulation are, none of them of
  an idle stage.
  """
  experts = {'model.feed_forward': EXPERTS.format(0.5, 0.1)}
  equal_on(
    tiny,
    one_device,
    mesh,
    experts,
    pipe,
    alone={'training.gradient_accumulation': pipe['pipeline.microbatches']},
  )


@pytest.mark.slow
def test_experts_without_capacity_may_lie_over_devices_of_a_stage(tiny, one_device):
  experts = {'model.feed_forward': 'mixture_of_experts(experts=4, balance=0.0)'}
  alone = {'training.gradient_accumulation': 2}
  equal_on(tiny, one_device, dict(stage=2, expert=4), experts, {'pipeline.microbatches': 2}, alone=alone)


@pytest.mark.slow
def test_a_mean_over_tokens_is_that_of_the_whole_batch(tiny, one_device):
  experts = {'model.feed_forward': 'mixture_of_experts(experts=4, balance=0.0, z_loss=0.5)'}
  (got,), _ = take_steps(sgd(tiny, **DEEP, **experts), mesh=dict(stage=2, data=2, tensor=2))
  (expected,), _ = one_device(**experts)
  assert got['auxiliary'] == pytest.approx(expected['auxiliary'], rel=2e-6)


@pytest.mark.slow
def test_dropout_depends_on_the_seed_and_differs_by_layer_and_microbatch(tiny):
  mesh, half = (
    dict(stage=2, data=2, tensor=2),
    {'model.dropout.residual': 0.5, 'model.dropout.attention': 0.2},
  )
  first, again, other = (
    take_steps(sgd(tiny, **DEEP, **half, seed=seed), mesh=mesh, steps=2)[0] for seed in (0, 0, 1)
  )
  assert first == again and first[0]['loss'] != other[0]['loss']


def placed(model, config, mesh):
  """The same random parameters, on one device and on a mesh, and the mesh's context."""
  result = meshes.make(mesh, jax.devices()[: math.prod(mesh.values())])
  rules = sharding.parse_rules(config.rules)
  boxed = jax.jit(lambda key: states.init_params(model, key, 8, LENGTH))(jax.random.key(0))
  params = nn.unbox(boxed)
  return (
    params,
    jax.device_put(params, sharding.named_shardings(boxed, result, rules)),
    functools.partial(sharding.context, result, rules),
  )


@pytest.mark.slow
def test_what_is_no_training_goes_through_all_layers(tiny):
  """Caches, and exposed attention weights."""
  config = tiny(**DEEP)
  model = Experiment(config).build_model(VOCAB)
  params, cut, on = placed(model, config, dict(stage=2, data=2))
  tokens = np.random.default_rng(0).integers(0, VOCAB, (2, 6))

  def reported(params):
    return model.apply({'params': params}, tokens, Context.contiguous(tokens), mutable=[ATTENTION])[1]

  def cached(params):
    return model.apply({'params': params}, tokens, Context.contiguous(tokens), model.init_caches(2, 8))

  for f in (reported, cached):
    with on():
      got = jax.jit(f)(cut)
    assert_trees_close(got, jax.jit(f)(params), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_of_stages_goes_on_without_them(tiny, tmp_path):
  """A pipeline saves a checkpoint, evaluates, and the rest of the run continues on another mesh."""
  pipe = {
    'mesh.data': 2,
    'mesh.stage': 2,
    'mesh.tensor': 2,
    'pipeline.repeats': 2,
    'pipeline.microbatches': 4,
    **DEEP,
  }
  train(tiny(**DEEP), tmp_path / 'one')
  train(tiny(**pipe, **{'training.steps': 6}), tmp_path / 'pipe')

  def compare():
    loss = [
      [row['loss'] for row in metrics.read(tmp_path / name / 'metrics.jsonl')] for name in ('one', 'pipe')
    ]
    np.testing.assert_allclose(*loss, rtol=2e-5)

  compare()
  shutil.rmtree(tmp_path / 'pipe' / 'checkpoints' / '6')
  train(tiny(**DEEP), tmp_path / 'pipe')
  compare()
  assert 'resuming from step 3' in (tmp_path / 'pipe' / 'log.txt').read_text()
  assert '2 stages, 2 rounds of 4 microbatches, bubble 11.1%' in (tmp_path / 'pipe' / 'log.txt').read_text()


@pytest.mark.parametrize('remat', ['none', 'dots', "save('feed_forward/up')", "save('attention')", 'full'])
@pytest.mark.slow
def test_no_iteration_keeps_parameters(tiny, remat):
  """Neither those of its round nor their copies in bfloat16; the backward pass keeps of a layer what its
  policy says.
  """
  config = tiny(
    **{
      'model.layers': 8,
      'model.width': 48,
      'model.feed_forward_width': 112,
      'model.remat': remat,
      'pipeline.repeats': 2,
      'model.dtype': 'bfloat16',
    }
  )
  model, objective = Experiment(config).build_model(VOCAB), Experiment(config).objective
  params, _, on = placed(model, config, dict(stage=2))
  with on():
    text = str(jax.make_jaxpr(jax.grad(lambda p: objective(model, p, batch(), jax.random.key(0))[0]))(params))
  # [iterations, stages, layers of a round, rows, tokens, …] of what is kept, and nothing of [D F].
  its, rows = plan_schedule(2, 2, 0, 8, 1).iterations, 2
  assert f'[{its},2,2,{rows},{LENGTH},48]' in text
  keeps_hidden = remat not in ('full', "save('attention')")
  assert (f'[{its},2,2,{rows},{LENGTH},112]' in text) == keeps_hidden
  assert f'[{its},2,2,48,112]' not in text and f'[{its},2,2,112,48]' not in text


@pytest.mark.slow
def test_memory_of_a_device_falls_with_the_stages(tiny):
  """On so many devices as there are stages: parameters and moments as 1 / S, and so, but for the bubble, what
  is kept for the backward pass.
  """
  wide = {'model.layers': 16, 'model.width': 64, 'training.batch_size': 32, 'optimizer.name': 'adamw'}
  used = {S: Compiled(tiny(**wide), dict(stage=S)).step.memory_analysis() for S in (1, 2, 4, 8)}
  for S in (2, 4, 8):
    assert used[S].argument_size_in_bytes < 1.35 / S * used[1].argument_size_in_bytes
    assert used[S].temp_size_in_bytes < 1.5 * (1 / S + 0.08) * used[1].temp_size_in_bytes, used
