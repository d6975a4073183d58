"""Logical axes: names are closed, rules are read strictly, and specs come out by the rules."""

import contextlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tfm.config.schema import default_config
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.parallel.sharding import (
  AXES,
  Parameter,
  named_shardings,
  parse_rules,
  shard,
  validate_divisibility,
  with_logical_axes,
)


RULES = parse_rules(default_config().rules)
X = jnp.ones((8, 4, 16))


def mesh(data=2, fsdp=2, tensor=2):
  return meshes.make(dict(data=data, fsdp=fsdp, tensor=tensor))


def box(*shape_and_names):
  shape, names = shape_and_names[:-1], shape_and_names[-1]
  return Parameter(jax.ShapeDtypeStruct(shape, jnp.float32), names)


class TestShard:
  @pytest.mark.parametrize('inside', [False, True])
  @pytest.mark.parametrize(
    'names, complaint',
    [
      (('batch', 'length', 'embd'), "'embd' is not a logical axis; use one of batch, length, embed"),
      (('batch', 'length', 'Embed'), "'Embed' is not a logical axis"),
      (('batch', 'length', ''), "'' is not a logical axis"),
      (('batch', 'length', 'tensor'), "'tensor' is not a logical axis"),  # a mesh axis is no meaning
      (('batch', 'length'), 'give one per dimension'),
      (('batch', 'length', 'heads', 'kv'), 'give one per dimension'),
      ((), 'give one per dimension'),
    ],
  )
  def test_raises_inside_and_outside_of_a_mesh(self, names, complaint, inside):
    with sharding.context(mesh(), RULES) if inside else contextlib.nullcontext():
      with pytest.raises(ValueError, match=complaint):
        jax.eval_shape(lambda x: shard(x, *names), X)

  def test_outside_of_a_mesh_it_returns_what_it_got(self):
    assert shard(X, 'batch', 'length', 'embed') is X

  @pytest.mark.parametrize(
    'names, own',
    [
      (('batch', 'length', 'mlp'), (2, 4, 8)),  # batch over data and fsdp, mlp over tensor
      (('batch', 'length', 'embed'), (2, 4, 16)),  # fsdp is the batch's already
      (('length', 'batch', 'vocab'), (8, 1, 8)),
      (('embed', 'kv', 'heads'), (4, 4, 8)),
      (('kv', 'table', 'layers'), (8, 4, 16)),
      (('batch', None, 'mlp'), (2, 4, 8)),  # None: an axis stays whole
    ],
  )
  def test_inside_it_cuts(self, names, own):
    with sharding.context(mesh(), RULES):
      y = jax.jit(lambda x: shard(x * 2, *names))(X)
    assert y.sharding.shard_shape(y.shape) == own
    np.testing.assert_array_equal(y, 2 * X)

  def test_the_context_ends(self):
    with sharding.context(mesh(), RULES):
      pass
    assert shard(X, 'batch', 'length', 'embed') is X
    with pytest.raises(ZeroDivisionError), sharding.context(mesh(), RULES):
      1 / 0
    assert shard(X, 'batch', 'length', 'embed') is X


class TestRules:
  def test_read_in_the_order_of_the_axes(self):
    assert parse_rules({'embed': 'fsdp', 'length': '', 'batch': 'data fsdp'}) == (
      ('batch', ('data', 'fsdp')),
      ('length', ()),
      ('embed', ('fsdp',)),
    )

  def test_an_unknown_axis_is_refused(self):
    with pytest.raises(ValueError, match='rules.embd is not a logical axis; use one of batch'):
      parse_rules({'embd': 'fsdp'})

  def test_the_schema_has_a_rule_for_every_axis(self):
    """An axis without a rule would be left to the compiler."""
    assert set(default_config().rules) == set(AXES)


class TestParameters:
  def test_specs(self):
    boxed = dict(
      kernel=box(16, 8, 4, ('embed', 'heads', 'kv')),
      stacked=box(3, 16, 8, ('layers', 'embed', 'mlp')),
      table=box(32, 16, ('vocab', 'embed')),
      step=jax.ShapeDtypeStruct((), jnp.int32),
    )
    where = named_shardings(boxed, mesh(), RULES)

    def cut(name, shape):
      return where[name].shard_shape(shape)

    assert cut('kernel', (16, 8, 4)) == (8, 4, 4)
    assert cut('stacked', (3, 16, 8)) == (3, 8, 4)
    assert cut('table', (32, 16)) == (16, 8)
    assert where['step'].is_fully_replicated

  def test_partitioned_checks_the_names(self):
    key = jax.random.key(0)
    result = with_logical_axes(nn.initializers.ones, ('embed', 'mlp'))(key, (2, 3))  # the type as Flax's
    assert isinstance(result, Parameter) and result.names == ('embed', 'mlp') and result.value.shape == (2, 3)
    with pytest.raises(ValueError, match="'mpl' is not a logical axis"):
      with_logical_axes(nn.initializers.ones, ('embed', 'mpl'))(key, (2, 3), jnp.float32)
    with pytest.raises(ValueError, match='give one per dimension'):
      with_logical_axes(nn.initializers.ones, ('embed',))(key, (2, 3), jnp.float32)

  def test_divisibility(self):
    validate_divisibility(dict(a=box(16, 8, ('embed', 'mlp')), step=jnp.int32(0)), mesh(), RULES)
    complaint = (
      "splits 'mlp' of the parameter block/up into 2 shards, which do not divide its size 7; "
      '.* or config.mesh.tensor, .* '
      'nearest valid mesh of 8 devices is data=4 fsdp=2'
    )
    with pytest.raises(ValueError, match=complaint):
      validate_divisibility(dict(block=dict(up=box(16, 7, ('embed', 'mlp')))), mesh(), RULES)
    with pytest.raises(
      ValueError, match="'vocab' of the parameter t into 4 shards, which do not divide its size 6; "
    ):
      rules = parse_rules(dict(vocab='data tensor', embed=''))
      validate_divisibility(dict(t=box(6, 4, ('vocab', 'embed'))), mesh(), rules)


def test_a_jitted_function_is_traced_anew_under_other_rules():
  @jax.jit
  def double(x):
    return shard(2 * x, 'batch', 'length', 'embed')

  for axis, size in (('data', 2), ('tensor', 4), ('data', 2)):
    rules = parse_rules({**default_config().rules, 'batch': axis})
    with sharding.context(mesh(data=2, fsdp=1, tensor=4), rules):
      assert double(X).sharding.shard_shape(X.shape)[0] == len(X) // size, axis


def test_batches_lie_over_the_axes_of_the_batch():
  assert sharding.batch_sharding(mesh(), RULES).spec == PartitionSpec(('data', 'fsdp', 'expert'))
  assert sharding.batch_sharding(mesh(), parse_rules(dict(batch=''))).is_fully_replicated
  assert sharding.replicated(mesh()).is_fully_replicated


def test_a_parameter_of_plain_flax_is_refused_by_name():
  named = {'stack': {'scale': box(16, ('embed',))}}
  sharding.require_axes(named)
  plain = nn.Dense(16).init(jax.random.key(0), X)['params']
  with pytest.raises(ValueError, match='^the parameter dense/bias has no logical axes.*layers.linear.Linear'):
    sharding.require_axes(named | {'dense': plain})


def test_a_parameter_must_name_every_axis():
  init = sharding.with_logical_axes(lambda key, shape, dtype: jnp.zeros(shape, dtype), ('embed', None))
  with pytest.raises(ValueError, match='None is not a logical axis'):
    init(jax.random.key(0), (2, 2), jnp.float32)


def test_an_axis_of_the_mesh_twice_is_refused():
  with pytest.raises(ValueError, match="rules.embed='fsdp fsdp' has an axis of the mesh twice"):
    parse_rules(dict(embed='fsdp fsdp'))
