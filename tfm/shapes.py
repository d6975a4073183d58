"""The one glossary of shapes: the letters used in einsum strings, signatures and docstrings.

  B  batch (sequences)              D  model width
  T  query length (tokens)          F  feed-forward width
  S  key length (tokens)            V  vocabulary
  H  query heads                    L  layers
  K  key/value heads                N  anything flat
  G  query heads per key head (H = K · G)
  C  channels of one head (head width)  P  places of a row whose tokens are predicted

`Float[Array, 'B T D']` reads "an array of floats, batch × length × width".
"""

from jax import Array
from jaxtyping import Bool, Float, Int, PyTree, UInt32, UInt64


__all__ = ['Array', 'Bool', 'Float', 'Int', 'PyTree', 'UInt32', 'UInt64']
