"""A loop that changes its caches in place."""

from collections.abc import Callable

import jax

from tfm.layers.unit_axes import drop_unit_axes
from tfm.shapes import Array, Bool, PyTree


def while_loop(
  is_unfinished: Callable[[PyTree], Bool[Array, '']], step: Callable[[PyTree], PyTree], carry: PyTree
) -> PyTree:
  """`jax.lax.while_loop`; the carry has no axes of one row or one head.

  XLA's CPU compiler drops them from products. A cache `[1 K S C]` that is carried as it is, and read as
  `[K S C]`, would be two arrays, each copied for each token.
  """
  shapes = jax.eval_shape(lambda: carry)

  def drop(carry):
    return jax.tree.map(drop_unit_axes, carry)

  def restore(carry):
    return jax.tree.map(lambda x, shape: x.reshape(shape.shape), carry, shapes)

  return restore(
    jax.lax.while_loop(
      lambda carry: is_unfinished(restore(carry)), lambda carry: drop(step(restore(carry))), drop(carry)
    )
  )
