"""Meshes that cannot be, and what is proposed instead."""

import math

import jax
import pytest

from tfm.config import mesh_constraints
from tfm.config.assemble import Experiment
from tfm.config.resolve import resolve_config
from tfm.config.schema import BLOCK_FIELDS, optional
from tfm.config.validate import validate_run
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.parallel.mesh_request import DivisibilityConstraint, MeshRequest, SliceConstraint, factorizations
from tfm.training import state as states


VOCAB = 50


def need(size, *axes):
  return DivisibilityConstraint(size, axes, lambda parts: f'{size} into {parts}')


class TestNearest:
  @pytest.mark.parametrize(
    'requested, devices, needs, nearest',
    [
      (dict(data=3), 8, (), dict(data=8)),  # one doubling less would leave two devices over
      (dict(data=4, fsdp=4), 8, (), dict(data=2, fsdp=4)),  # fewer copies, rather than larger parts
      (dict(data=-1, tensor=3), 8, (), dict(data=2, tensor=4)),
      (dict(data=-1, tensor=4), 8, (need(6, 'tensor'),), dict(data=4, tensor=2)),
      (dict(data=8), 8, (need(4, 'data', 'fsdp'),), dict(data=4, tensor=2)),
      (dict(stage=4, tensor=2), 8, (need(6, 'stage'), need(12, 'data')), dict(stage=2, data=2, tensor=2)),
      (dict(fsdp=64, tensor=8), 6 * 64, (), dict(fsdp=48, tensor=8)),
      (dict(data=2), 7, (need(4, *meshes.AXES),), None),
      (dict(data=-1), 1, (), {}),
    ],
  )
  def test_is_the_fewest_doublings_away(self, requested, devices, needs, nearest):
    got = MeshRequest(requested, devices, needs).nearest()
    assert got == nearest or meshes.sharded_axes(got) == nearest

  def test_the_slow_network_counts_too(self):
    assert meshes.sharded_axes(
      MeshRequest(dict(tensor=8), 8, (SliceConstraint(2, ('data',)),)).nearest()
    ) == dict(data=2, tensor=4)
    assert meshes.sharded_axes(
      MeshRequest(dict(tensor=8), 8, (SliceConstraint(4, ('stage',)),)).nearest()
    ) == dict(stage=4, tensor=2)

  def test_all_factorisations_are_looked_at(self):
    found = [tuple(sizes.values()) for sizes in factorizations(12, ('a', 'b', 'c'))]
    expected = {(a, b, 12 // (a * b)) for a in range(1, 13) for b in range(1, 13) if 12 % (a * b) == 0}
    assert set(found) == expected and len(found) == len(expected)

  def test_a_pod_of_thousands_is_looked_through(self):
    assert math.prod(MeshRequest(dict(fsdp=5000), 4096).nearest().values()) == 4096


REFUSED = {
  'product': (
    {'mesh.data': 3},
    'config.mesh: data=3 needs 3 devices and there are 8; .* the nearest valid mesh of 8 devices is data=8$',
  ),
  'product and heads': (
    {'mesh.tensor': 5},
    'config.mesh: data=-1 tensor=5 needs a multiple of 5 devices.* devices is data=2 tensor=4$',
  ),
  'product and layers': (
    {'mesh.stage': 3, 'mesh.tensor': 2},
    'needs a multiple of 6 .* devices is stage=2 data=2 tensor=2$',
  ),
  'batch': (
    {'training.batch_size': 4},
    'config.training.batch_size=4 in 1 microbatches .* use a multiple of 8; the nearest '
    'valid mesh of 8 devices is data=4 tensor=2$',
  ),
  'batch over experts': (
    {'training.batch_size': 2, 'mesh.data': 1, 'mesh.expert': 8},
    "mesh axes 'data fsdp expert'; use a multiple of 8; .* .*devices is",
  ),
  'length': (
    {'mesh.sequence': 8, 'data.length': 12},
    'config.data.length=12 gives rows of 12 inputs, which do not divide over the 8 devices '
    "of the mesh axes 'sequence ulysses'; .* devices is data=2 sequence=4$",
  ),
  'heads for tokens': (
    {'mesh.ulysses': 8},
    'config.model.heads=4: config.mesh.tensor × config.mesh.ulysses = 8 exchanges tokens for 4 heads, which '
    'do not divide over 8 devices; .* the nearest valid mesh of 8 devices is data=2 ulysses=4$',
  ),
  'heads for tokens, beside tensor': (
    {'mesh.ulysses': 4, 'mesh.tensor': 2},
    'config.mesh.tensor × config.mesh.ulysses = 8 exchanges tokens for 4 heads, '
    '.* devices is data=2 ulysses=2 tensor=2$',
  ),
  'recurrence': (
    {'mesh.sequence': 8, 'training.recurrence_length': 4},
    'config.training.recurrence_length=4 does not divide over the 8 devices .* devices is data=2 sequence=4$',
  ),
  'layers over stages': (
    {'mesh.stage': 4},
    'config.model.layers=2 does not divide over 4 stages; use 4; .* devices is stage=2 data=4$',
  ),
  'layers in rounds': (
    {'mesh.stage': 4, 'model.layers': 12, 'pipeline.repeats': 2},
    r'layers=12, in config.pipeline.repeats=2 rounds, does not divide over 4 stages; use 8 or 16; .*',
  ),
  'encoder': (
    {
      'mesh.stage': 2,
      'model.architecture': 'encoder_decoder',
      'objective': 'seq2seq',
      'data.source': 'numbers("en", "de")',
      'data.packing': 'padded',
      'model.encoder.layers': 3,
    },
    'config.model.encoder.layers=3 does not divide over 2 stages; use 2 or 4',
  ),
  'microbatches': (
    {'mesh.stage': 2, 'pipeline.microbatches': 4},
    'batch_size=8 in 1 microbatches of config.pipeline.microbatches=4 does not divide over the 4 devices .* '
    'use a multiple of 16; '
    '.* devices is stage=2 data=2 tensor=2$',
  ),
  'microbatches of rows': (
    {'mesh.stage': 2, 'pipeline.microbatches': 3},
    'batch_size=8 is not divisible by 1 microbatches of config.pipeline.microbatches=3; use a multiple of 3$',
  ),
  'rounds of few': (
    {'mesh.stage': 4, 'model.layers': 16, 'pipeline.repeats': 2, 'pipeline.microbatches': 2},
    'config.pipeline.microbatches=2 is less than 4 stages.*; use 4 or more; .* devices is stage=2 data=4$',
  ),
  'rounds of few rows': (
    {'mesh.stage': 4, 'model.layers': 16, 'pipeline.repeats': 2, 'training.batch_size': 4},
    'batch_size=4 in 1 microbatches gives fewer rows than the 8 stages and devices of the mesh axes '
    "'data fsdp expert'.* "
    'use 8 or more; .* devices is stage=4 tensor=2$',
  ),
  'rounds without stages': (
    {'pipeline.repeats': 2, 'model.layers': 4},
    'config.pipeline.repeats=2 needs a mesh with stages, and config.mesh.stage=1 has none; leave it at '
    '1; .* devices is stage=2 data=4$',
  ),
  'microbatches without stages': (
    {'pipeline.microbatches': 1},
    'config.pipeline.microbatches=1 needs a mesh with stages',
  ),
  'no stack': (
    {'mesh.stage': 2, 'model.scan': False},
    'config.model.scan=False does not stack layers, so 2 stages cannot share them; set it to True; '
    '.*devices is data=8$',
  ),
  'pieces': (
    {'mesh.stage': 2, 'training.recurrence_length': 8},
    'config.training.recurrence_length=8 needs caches',
  ),
  'a rule': (
    {'mesh.stage': 2, 'rules.mlp': 'tensor stage'},
    "config.rules.mlp='tensor stage' splits over 2 stages what each needs completely",
  ),
  'a rule of layers': (
    {'mesh.stage': 2, 'rules.layers': ''},
    "config.rules.layers='' does not distribute the layers over 2 stages; set it to 'stage'",
  ),
  'slices': (
    {'slices.count': 2, 'mesh.data': 1, 'mesh.tensor': 4, 'mesh.fsdp': 2},
    'config.mesh.data=1 is not divisible by 2 slices.* devices is data=2 tensor=4$',
  ),
  'an axis of slices that is none': (
    {'slices.axis': 'foo'},
    "^config.slices.axis='foo' cannot span slices; use 'data' or 'stage'$",
  ),
  'an axis that slices cannot have': (
    {'slices.axis': 'fsdp', 'slices.count': 2},
    "^config.slices.axis='fsdp' cannot span slices; use 'data' or 'stage'$",
  ),
  'slices that no mesh has': (
    {'slices.count': 3},
    '^config.slices.count=3 does not divide 8 devices; use a divisor, or -1 for the slices that '
    'the devices report$',
  ),
  'no slices': ({'slices.count': 0}, '^config.slices.count=0 does not divide 8 devices'),
  'what is left is taken already': (
    {'mesh.tensor': 16},
    '^config.mesh: data=-1 tensor=16 needs a multiple of 16 devices and there are 8; '
    'the nearest valid mesh of 8 devices is data=2 tensor=4$',
  ),
  'what is left would not do': (
    {'mesh.stage': 3, 'mesh.data': 1},
    '^config.mesh: stage=3 needs 3 devices and there are 8; the nearest valid mesh .* is stage=2 data=4$',
  ),
  'nothing works': (
    {
      'mesh.data': 7,
      'training.batch_size': 3,
      'data.length': 5,
      'model.layers': 1,
      'model.heads': 5,
      'model.width': 50,
    },
    'needs 7 devices.*; no mesh of 8 devices is valid$',
  ),
}


@pytest.mark.parametrize('fields, sentence', REFUSED.values(), ids=REFUSED)
def test_a_mesh_that_does_not_suit_the_run_is_refused(tiny, fields, sentence):
  """Before anything is read or compiled."""
  with pytest.raises(ValueError, match=sentence):
    validate_run(Experiment(tiny(**fields)), 8)


def test_turns_of_a_pattern_are_whole_in_every_stage(tiny):
  config = tiny(**{'mesh.stage': 2, 'model.layers': 5})
  config.model.blocks, config.model.pattern = {name: optional(BLOCK_FIELDS) for name in 'ab'}, ('a', 'b')
  with pytest.raises(
    ValueError,
    match='config.model.layers=5 in repetitions of 2 blocks does not divide over 2 stages; use 4 or 8; '
    '.* devices is data=8$',
  ):
    validate_run(Experiment(resolve_config(config)), 8)


def test_rows_of_several_lengths_cannot_be_cut(tiny):
  config = tiny(
    **{
      'data.source': 'parallel("a", "b")',
      'data.packing': 'buckets',
      'objective': 'seq2seq',
      'model.architecture': 'encoder_decoder',
      'mesh.sequence': 2,
    }
  )
  with pytest.raises(
    ValueError,
    match="config.data.packing='buckets' makes rows of several lengths, which the mesh axes 'sequence "
    "ulysses'.*devices is data=8",
  ):
    validate_run(Experiment(config), 8)


EXPERTS = {'model.feed_forward': 'mixture_of_experts(experts=4)'}
INDIVISIBLE = {
  'heads alike': (
    dict(tensor=8),
    {},
    r"config.mesh.tensor = 8 splits 'kv_heads' of the parameter stack/.*/kernel into 8 shards, "
    "which do not divide its size 4; .* config.rules.kv_heads=''; "
    'the nearest valid mesh of 8 devices is data=2 tensor=4$',
  ),
  'kv_heads': (
    dict(tensor=4),
    {'model.kv_heads': 2},
    "'kv_heads' .* into 4 shards, which do not divide its size 2; .* devices is data=4 tensor=2$",
  ),
  'mlp': (
    dict(tensor=4),
    {'model.feed_forward_width': 98},
    "'mlp' .* its size 98.* devices is data=4 tensor=2$",
  ),
  'vocab': (
    dict(tensor=4),
    {'model.vocab_multiple': 1},
    "'vocab' .* embedding/table into 4 shards, which do not divide its size 50.* devices is data=4 tensor=2$",
  ),
  'embed': (
    dict(fsdp=8),
    {'model.width': 36, 'model.heads': 2},
    "config.mesh.fsdp = 8 splits 'embed' .* its size 36.* devices is data=2 fsdp=4$",
  ),
  'expert': (
    dict(expert=8),
    EXPERTS,
    r"config.mesh.expert = 8 splits 'expert' .* its size 4.* devices is data=2 expert=4$",
  ),
  'layers': (
    dict(stage=4),
    {},
    r"config.mesh.stage = 4 splits 'layers' .* its size 2.* devices is stage=2 data=4$",
  ),
  'stages without layers': (
    dict(stage=2),
    {'model.scan': False},
    'config.mesh.stage=2 shards nothing, so 2 devices would repeat the same computation; '
    'pipeline stages need stacked layers.* devices is data=8$',
  ),
  'a slow network': (
    dict(data=2, tensor=4),
    {'model.kv_heads': 2, 'slices.count': 2, 'slices.axis': 'stage', 'mesh.stage': 1},
    "'kv_heads' .* into 4 shards, which do not divide its size 2; .* devices is stage=2 data=2 tensor=2$",
  ),
  'an axis without a rule': (
    dict(fsdp=2),
    {'rules.batch': 'data', 'rules.embed': ''},
    'config.mesh.fsdp=2 shards nothing.* devices is data=8$',
  ),
}


@pytest.mark.parametrize('mesh, fields, sentence', INDIVISIBLE.values(), ids=INDIVISIBLE)
def test_a_mesh_that_does_not_divide_the_model_is_refused(tiny, mesh, fields, sentence):
  config = tiny(**fields)
  boxed = states.abstract_state(
    lambda key: states.init_params(Experiment(config).build_model(VOCAB), key, 8, 32)
  )
  with pytest.raises(ValueError, match=sentence):
    sharding.validate_divisibility(
      boxed,
      meshes.make(dict(data=-1) | mesh),
      sharding.parse_rules(config.rules),
      tuple(mesh_constraints.list_constraints(Experiment(config))),
    )


def test_what_is_proposed_works(tiny):
  """Of any mesh requested on twelve devices, with 6 heads, 4 layers and rows of 24 tokens."""
  config = tiny(
    **{'model.heads': 6, 'model.width': 48, 'model.layers': 4, 'data.length': 24, 'training.batch_size': 12}
  )
  boxed = jax.eval_shape(
    lambda key: states.init_params(Experiment(config).build_model(VOCAB), key, 1, 24), jax.random.key(0)
  )
  constraints = (
    *mesh_constraints.batch_constraints(Experiment(config)),
    *sharding.mesh_constraints(boxed, sharding.parse_rules(config.rules)),
  )
  for requested in ({axis: size} for axis in meshes.AXES for size in (3, 5, 8, 12)):
    near = MeshRequest(requested, 12, constraints).nearest()
    assert MeshRequest(near, 12, constraints).sizes() == near
