"""Activations by name."""

import functools

import jax
import jax.numpy as jnp


ACTIVATIONS = {
  'relu': jax.nn.relu,
  'relu_squared': lambda x: jnp.square(jax.nn.relu(x)),  # So et al. 2021, Primer, §4.1
  'gelu': functools.partial(jax.nn.gelu, approximate=False),
  'gelu_tanh': functools.partial(jax.nn.gelu, approximate=True),
  'quick_gelu': lambda x: x * jax.nn.sigmoid(1.702 * x),  # Hendrycks & Gimpel 2016, §2: x σ(1.702 x)
  'silu': jax.nn.silu,
  'tanh': jnp.tanh,
}
