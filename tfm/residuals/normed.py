"""One branch after another, each added to its own normalized input."""

import dataclasses

from tfm.residuals.protocol import Residual


@dataclasses.dataclass(frozen=True)
class Normed(Residual):
  """y + f(y) with y = norm(x), so that the residual stream passes through every norm.

  Megatron-LM's `apply_residual_connection_post_layernorm` (Shoeybi et al. 2019, released code), an option of
  BLOOM.
  """

  placements = ('pre',)

  def __call__(self, block, branches, x, context):
    for name, f in branches.items():
      y = block.norm(name=f'{name}_norm')(x)
      x = y + block.apply_dropout(f(y), context)
    return x
