"""The bias of a position alone: whether a block of it, or its distances, are all that it depends on."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from tfm.config import assemble
from tfm.config.assemble import Experiment
from tfm.conformance import collect
from tfm.conformance.tiny import apply_with_random_params, config
from tfm.layers.locations import Locations


B, T, S, H, K, C = 2, 6, 10, 4, 2, 4
DRAW = np.random.default_rng(0)
Q, KEY = (
  jnp.asarray(DRAW.standard_normal(shape), jnp.float32) for shape in ((B, K, H // K, T, C), (B, K, S, C))
)
Q_AT = jnp.asarray(DRAW.integers(0, 12, (B, T)), jnp.int32)
K_AT = jnp.asarray(DRAW.integers(0, 12, (B, S)), jnp.int32)


def apply_position(text: str, evaluate: Callable):
  """`evaluate` of the position with random parameters."""
  c = config(position=text)
  return apply_with_random_params(assemble.build_position(Experiment(c), 'model', c.model), evaluate)


@functools.cache
def make_bias(text: str) -> Partial | None:
  """The bias of a position with random parameters; None if it adds nothing to the logits."""
  bias = apply_position(text, lambda result: result.bias(result.compute_table()))
  assert bias is None or isinstance(bias, Partial), (
    f'{text}: bias returns a value of type {type(bias).__name__}; '
    'return jax.tree_util.Partial(function, *parameters), whose leaves kernels differentiate'
  )
  return bias


def compute_bias(text: str, q, k, q_at, k_at) -> np.ndarray:
  """The bias [B K G T S] of queries and keys at positions."""
  at = (Locations(positions, jnp.ones_like(positions)) for positions in (q_at, k_at))
  bias = jax.jit(lambda bias: bias(q, k, *at))(make_bias(text))
  assert bias.ndim == 5, f'{text}: the bias has {bias.ndim} axes, not [B K G T S], each of which may be 1'
  return np.broadcast_to(bias, (B, K, H // K, q.shape[3], k.shape[2]))


@functools.cache
def find_bias_fault(text: str) -> str:
  """What is wrong with a bias alone: a sentence, or ''."""
  if make_bias(text) is None:
    return ''
  whole = compute_bias(text, Q, KEY, Q_AT, K_AT)
  block = compute_bias(text, Q[..., 2:5, :], KEY[:, :, 4:7], Q_AT[:, 2:5], K_AT[:, 4:7])
  is_blockwise = np.allclose(block, whole[..., 2:5, 4:7], rtol=1e-5, atol=1e-6)
  declared = collect.variant('position', text).has_blockwise_bias
  if is_blockwise != declared:
    return (
      f'{text}: the bias of keys 4–6 {"is the same" if is_blockwise else "changes"} without the other keys, '
      f'and has_blockwise_bias={declared}; declare has_blockwise_bias = {is_blockwise}'
    )
  if apply_position(text, lambda result: result.has_relative_bias):
    for q, k, shift, what in (
      (Q, KEY, 301, '301 positions further on'),  # odd, and rounded by bfloat16
      (-Q, 2 * KEY, 0, 'of other queries and keys'),
    ):
      if not np.allclose(compute_bias(text, q, k, Q_AT + shift, K_AT + shift), whole, rtol=1e-5, atol=1e-6):
        return (
          f'{text}: the bias {what}, at the same distances, is another one, and has_relative_bias=True; '
          'declare has_relative_bias = False'
        )
  return ''
