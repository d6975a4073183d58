"""Activations by name."""

import functools

import jax
import jax.numpy as jnp

ACTIVATIONS = {
  'relu': jax.nn.relu,
  'gelu': functools.partial(jax.nn.gelu, approximate=False),
  'gelu_tanh': functools.partial(jax.nn.gelu, approximate=True),
  'silu': jax.nn.silu,
  'tanh': jnp.tanh,
}
