"""Experts with a capacity: the slot of every choice."""

import jax.numpy as jnp
from flax import struct

from tfm.layers.grouped_matmul import invert_permutation
from tfm.shapes import Array, Int


@struct.dataclass
class Slots:
  """The slot of each choice of a row, `capacity` slots per expert, and the choice in each slot.

  Attributes:
    slots: of each choice; beyond the last slot if it is dropped.
    sources: the choice in each slot; beyond the last choice if the slot is empty.
  """

  slots: Int[Array, 'A']
  sources: Int[Array, 'M']


def assign_slots(choices: Int[Array, 'A'], experts: int, capacity: int) -> Slots:
  """Assigns each expert's slots to its choices, in their order, while there are any.

  Args:
    choices: indices of experts; `experts` itself means none.
  """
  A, M = len(choices), experts * capacity
  counts = (choices[:, None] == jnp.arange(experts)[None]).sum(0)
  chosen = choices.clip(max=experts - 1)
  rank = invert_permutation(jnp.argsort(choices, stable=True)) - (jnp.cumsum(counts) - counts)[chosen]
  fits = (choices < experts) & (rank < capacity)
  # Dropped choices get distinct indices too, because the scatter requires unique ones.
  slots = jnp.where(fits, chosen * capacity + rank, M + jnp.arange(A))
  sources = (A + jnp.arange(M)).at[slots].set(jnp.arange(A), mode='drop', unique_indices=True)
  return Slots(slots, sources)
