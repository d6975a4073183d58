"""A residual stream of unit length, which each branch turns a little (nGPT)."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import constant
from tfm.layers.unit_vectors import normalize
from tfm.parallel.sharding import with_logical_axes
from tfm.residuals.protocol import Residual
from tfm.shapes import Array, Float
from tfm.spec import PositiveFloat


@dataclasses.dataclass(frozen=True)
class Spherical(Residual):
  """h ← unit(h + α ⊙ (unit(f(h)) - h)), with unit(x) = x / |x| and α [D] learned for each branch
  (Loshchilov et al. 2024, nGPT, eq. 10 and 11).

  The embedded token is brought to unit length, too. α is |a| √D · rate, where a starts from 1/√D, as large as
  the numbers of a vector of unit length. Unit weights, and the scales of queries, keys, hidden layers and
  logits, are `parametrization='unit_weights'`.

  Attributes:
    rate: where α starts.
  """

  rate: PositiveFloat = 0.05

  placements = ('res_post',)
  has_unit_length = True

  def __call__(self, block, branches, x, context):
    h = normalize(x.astype(jnp.float32))
    for name, f in branches.items():
      y = block.apply_dropout(f(h.astype(x.dtype)), context).astype(jnp.float32)
      h = normalize(h + Rates(self.rate, name=f'{name}_rates')(h) * (normalize(y) - h))
    return h.astype(x.dtype)


class Rates(nn.Module):
  """α of one branch; `rate`: where it starts."""

  rate: float

  @nn.compact
  def __call__(self, h: Float[Array, 'B T D']) -> Float[Array, '1 1 D']:
    D = h.shape[-1]
    a = self.param('scale', with_logical_axes(constant(D**-0.5), ('embed',)), (D,), jnp.float32)
    return (jnp.abs(a) * D**0.5 * self.rate)[None, None]
