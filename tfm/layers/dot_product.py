"""The scaled dot product, which kernels made for it recognise."""

import jax.numpy as jnp

from tfm.shapes import Array, Float


def scaled_dot(
  q: Float[Array, 'B K G T C'], k: Float[Array, 'B K S C'], scale: float
) -> Float[Array, 'B K G T S']:
  """scale · q·k, accumulated in float32."""
  B, K, G, T, C = q.shape
  # The queries of a group as rows of one matrix: one product for each key head.
  logits = jnp.einsum(
    'BKNC,BKSC->BKNS',
    (q * jnp.asarray(scale, q.dtype)).reshape(B, K, G * T, C),
    k,
    preferred_element_type=jnp.float32,
  )
  return logits.reshape(B, K, G, T, -1)
