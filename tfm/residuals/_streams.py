"""What residuals of several streams share: each branch reads a mixture of the streams and writes to all."""

import abc
import dataclasses

import jax.numpy as jnp

from tfm.residuals.protocol import Residual
from tfm.shapes import Array, Float
from tfm.spec import Size


@dataclasses.dataclass(frozen=True)
class StreamMixing(Residual):
  """h_t ← Σ_s A_st h_s + b_t f(norm(Σ_s a_s h_s)) for one branch f after another, over streams h_1 … h_N.

  The streams start as copies of the embedded token, and are summed after the last block.

  Attributes:
    streams: N.
  """

  streams: Size = 4

  placements = ('pre', 'sandwich', 'res_post')

  @abc.abstractmethod
  def weigh(
    self, block, name: str, h: Float[Array, 'B T N D']
  ) -> tuple[Float[Array, 'B T N'], Float[Array, 'B T N N'], Float[Array, 'B T N']]:
    """a, A and b of the branch of that name, in float32."""

  def __call__(self, block, branches, x, context):
    for name, f in branches.items():
      read, mix, write = self.weigh(block, name, x)
      h = x.astype(jnp.float32)
      y = block.branch(name, f, jnp.einsum('BTN,BTND->BTD', read, h).astype(x.dtype), context)
      written = jnp.einsum('BTN,BTD->BTND', write, y.astype(jnp.float32))
      x = (jnp.einsum('BTNM,BTND->BTMD', mix, h) + written).astype(x.dtype)
    return x
