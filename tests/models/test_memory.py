"""Bytes of one device: by hand, and against what XLA allots to the whole training step."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType

from tfm.analysis import estimate
from tfm.config.assemble import Experiment
from tfm.config.overlay import complete
from tfm.config.resolve import resolve_config
from tfm.conformance import tiny
from tfm.data.packing.protocol import padding_row
from tfm.models import memory
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding
from tfm.training import state as states
from tfm.training.step import train_step


FLOAT = 4
MESH = AbstractMesh((2, 4, 2), ('data', 'fsdp', 'tensor'), axis_types=(AxisType.Auto,) * 3)
RULES = sharding.parse_rules(dict(embed='fsdp', mlp='tensor', heads='tensor', vocab='tensor'))


def test_parameters_on_one_device():
  boxed = tiny.boxed(tiny.decoder(layers=2, width=16, tie_embeddings=True, bias=False))
  D, H, K, C, F, rows, L = 16, 4, 2, 4, 32, 32, 2
  norms = D + 2 * L * D
  whole = rows * D + L * D * (2 * H * C + 2 * K * C + 2 * F) + norms
  assert memory.total_bytes(boxed) == FLOAT * whole
  # Everything has an axis of width; keys and values have no second one that these rules cut.
  cut = (rows * D + L * D * (2 * H * C + 2 * F)) / 8 + (L * D * 2 * K * C + norms) / 4
  assert memory.on_device(boxed, MESH, RULES) == FLOAT * cut


def peak(f, *shapes):
  return memory.peak(jax.make_jaxpr(f)(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)).jaxpr)


def test_values_die_after_their_last_use():
  # Two of the four are alive at once; inputs and outputs are not counted.
  assert peak(lambda x: jnp.sin(jnp.sin(jnp.sin(jnp.sin(jnp.sin(x))))), (10,)) == 2 * 10 * FLOAT
  assert peak(lambda x: jnp.sin(x), (10,)) == 0


def test_a_view_keeps_its_array_alive_and_costs_nothing():
  def f(x):
    y = jnp.sin(x)
    view = y.reshape(5, 2)
    z = jnp.sin(jnp.sin(jnp.cos(x)))
    return view @ z.reshape(2, 5)

  assert peak(f, (10,)) == 3 * 10 * FLOAT


def test_an_inner_peak_stands_on_what_is_alive_outside():
  def f(x):
    y = jnp.sin(x)
    z, _ = jax.lax.scan(lambda c, _: (jnp.sin(jnp.sin(jnp.sin(c))), None), x, length=7)
    return y * z

  assert peak(f, (10,)) == (1 + 1 + 2) * 10 * FLOAT


def test_what_grows_with_depth():
  def alive(**model):
    config = tiny.config(32, **model)
    result, objective = Experiment(config).build_model(29), Experiment(config).objective
    params = nn.unbox(tiny.boxed(result, length=32))
    return memory.activations(
      functools.partial(estimate.training_loss, objective, result),
      params,
      lambda rows: (estimate.abstract_batch(padding_row(32), rows), None),
      rows=4,
    )

  twelve, double = alive(layers=12), alive(layers=24)
  assert 1.7 < double / twelve < 2
  # Remat keeps one [rows, T, D] array for each block more.
  saved = alive(layers=8, remat='full') - alive(layers=4, remat='full')
  assert 1 <= saved / (4 * 4 * 32 * 16 * FLOAT) < 1.3


@pytest.mark.slow
@pytest.mark.parametrize(
  'mesh, accumulation, model',
  [
    (dict(data=2, fsdp=2, tensor=2), 1, dict(remat='full')),
    pytest.param(dict(data=8), 1, dict(), marks=pytest.mark.slow),
    pytest.param(dict(data=8), 2, dict(layers=12), marks=pytest.mark.slow),
    pytest.param(dict(data=2, fsdp=4), 1, dict(layers=12, remat='dots'), marks=pytest.mark.slow),
    pytest.param(dict(tensor=4), 1, dict(kv_heads=4, feed_forward='swiglu'), marks=pytest.mark.slow),
    pytest.param(dict(stage=2), 1, dict(layers=12), marks=pytest.mark.slow),
    pytest.param(dict(stage=4, fsdp=2), 1, dict(layers=16, remat='full'), marks=pytest.mark.slow),
  ],
  ids=str,
)
def test_against_xla(mesh, accumulation, model):
  """Parameters and optimizer state are XLA's arguments; gradients and activations its temporaries.

  In float32, as XLA's CPU compiler makes float32 of bfloat16.
  """
  config = resolve_config(
    complete(
      dict(
        data=dict(length=64),
        model=dict(layers=3, width=64, heads=4) | model,
        mesh=mesh,
        training=dict(gradient_accumulation=accumulation),
      )
    )
  )
  vocab, training = 257, config.training
  here, rules = meshes.make(config.mesh.to_dict()), sharding.parse_rules(config.rules)
  there = estimate.abstract_mesh(config, devices=8)
  boxed = estimate.abstract_state(Experiment(config), Experiment(config).build_model(vocab))
  params = memory.on_device(boxed.params, there, rules)
  optimizer = memory.on_device(boxed.opt_state, there, rules)
  rows = training.batch_size // accumulation // estimate.shard_count(there, rules, 'batch')
  activations = estimate.activation_bytes(Experiment(config), vocab, 0, there, rows, params)

  where, split = states.state_shardings(boxed, here, rules), sharding.batch_sharding(here, rules)

  def placed(x, sharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  state = jax.tree.map(placed, nn.unbox(boxed), where)
  batch = jax.tree.map(
    lambda x: placed(x, split), estimate.abstract_batch(padding_row(config.data.length), training.batch_size)
  )
  with sharding.context(here, rules):
    step = train_step(
      Experiment(config).build_model(vocab),
      Experiment(config).objective,
      *Experiment(config).build_optimizer(),
      accumulation,
    )
    compiled = jax.jit(step, donate_argnums=0, out_shardings=(where, None)).lower(state, batch).compile()
  used = compiled.memory_analysis()
  ints = math.prod((accumulation, rows, config.data.length, 4, 4))
  assert 0 <= used.argument_size_in_bytes - ints - params - optimizer < 100  # step counters and the key
  gradients = params if accumulation == 1 else 2 * params
  assert 0.85 < (gradients + activations) / used.temp_size_in_bytes < 1.15
