"""Attention with rows, heads and tokens sharded over a mesh, as test_kernels.py has it on one device."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from tfm.config.schema import default_config
from tfm.conformance.test_kernels import CASES, cotangent, kernel
from tfm.conformance.tiny import PREFIX
from tfm.parallel import mesh as meshes
from tfm.parallel import sharding


RULES = sharding.parse_rules(default_config().rules)
# Cases with all queries; those with fewer queries than devices cannot be sharded.
ALL_QUERIES = [name for name, case in CASES.items() if case.queries == (0, 12)]


def abstract_mesh(kind, platform, **sizes):
  """A mesh of one device of that kind, or of such sizes, that is not attached."""
  device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
  axes = dict.fromkeys(meshes.AXES, 1) | sizes
  types = (AxisType.Auto,) * len(axes)
  return AbstractMesh((*axes.values(),), (*axes,), axis_types=types, abstract_device=device)


def function_on_mesh(text, case):
  """What `call` computes with rows, heads and tokens sharded over the mesh in force, and its arguments."""
  a = case.arrays
  fixed = {name: jnp.asarray(x) for name, x in a.items() if name not in 'qkv'}
  fixed |= case.make_inputs() | dict(k_prefix=jnp.full_like(fixed['k_positions'], PREFIX))
  attention = kernel(text)

  @jax.jit
  def run(q, k, v, *learned):
    def out(q, k, v, score, bias, sinks):
      q, k, v = (
        sharding.shard(x, 'batch', 'length', heads, 'kv')
        for x, heads in ((q, 'heads'), (k, 'kv_heads'), (v, 'kv_heads'))
      )
      return attention(q, k, v, score=score, bias=bias, sinks=sinks, **fixed)

    # A function of its own, as blocks of models are: its gradient is traced later, outside of its rules.
    y, back = jax.vjp(jax.jit(out), q, k, v, *learned)
    return y, back(jnp.asarray(cotangent(a), y.dtype))

  return run, (*(jnp.asarray(a[name]) for name in 'qkv'), *case.learned())


def call_on_mesh(sizes, text, case):
  """The result of `call` with rows, heads and tokens sharded over a mesh."""
  run, arguments = function_on_mesh(text, case)  # outside the mesh context: its arrays lie on no mesh
  with sharding.context(meshes.make(sizes), RULES):
    return run(*arguments)
