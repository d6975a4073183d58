"""Balancing the load of experts by biases, without an auxiliary loss (Wang et al. 2024, arXiv 2408.15664).

After each step the bias of expert i becomes b_i + u · sign(mean load - load_i), where the loads are choices
of the whole batch (algorithm 1). A bias is a parameter, so that it is initialized, sharded, saved and
restored as all others are; but in place of its gradient there is the excess of the load. Like a gradient it
is a sum over tokens, which microbatches, pipeline stages and devices add up: the sign is that of the whole
batch, however that is computed. `training/gradient_transforms.py` takes the sign, and leaves the biases out
of the norm of the gradient.
"""

import jax
import jax.numpy as jnp

from tfm.shapes import Array, Float, Int


BALANCE_BIAS = 'balance_bias'  # the name of the parameter


@jax.custom_vjp
def carry_excess_load(bias: Float[Array, 'E'], counts: Int[Array, 'E']) -> Float[Array, '']:
  """Zero, to be added to the loss, with E · (load - mean load) as the gradient of the bias.

  No factor on the loss changes that, such as the one against underflow in float16, unless it is 0: what an
  idle pipeline stage computes does not count, nor does a microbatch without labels.

  Args:
    counts: the load, how often each expert was chosen.
  """
  # Not a constant: stages under `vmap` would share it, and its factor.
  return (0 * counts).sum().astype(jnp.float32)


def _forward(bias, counts):
  return carry_excess_load(bias, counts), counts.astype(jnp.float32)


def _backward(counts, factor):
  # Whole numbers, unlike the difference to the mean.
  return jnp.where(factor != 0, len(counts) * counts - counts.sum(), 0), None


carry_excess_load.defvjp(_forward, _backward)
