"""Names of what a block computes, by which a policy of rematerialization stores it (`tfm.models.remat`).

A name is the path of the module in its block, such as `mixer/q` for the queries, so that it is that of the
parameters. Outside of differentiation under such a policy a name has no effect.
"""

import itertools

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from tfm.shapes import Array, PyTree


STATES = 'states'
BLOCK = 'block_'  # with its number in the pattern the name of a block of a stack


def name_output(y: Array, module: nn.Module, *parts: str) -> Array:
  """y under the path of a module in its block, and `parts` below it; as it is outside of a block."""
  path = [*itertools.dropwhile(lambda name: not name.startswith(BLOCK), module.path or ()), *parts]
  return checkpoint_name(y, '/'.join(path[1:])) if path[1:] else y


def name_states(states: PyTree) -> PyTree:
  """What a step of a recurrence gives, under the name `STATES`."""
  return jax.tree.map(lambda x: checkpoint_name(x, STATES), states)
