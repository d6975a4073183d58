"""Branches whose norm and gate depend on a vector of the row, and which start as zero (adaLN-Zero)."""

import dataclasses

from tfm.layers.modulation import Modulation, modulate
from tfm.residuals.protocol import Residual


@dataclasses.dataclass(frozen=True)
class AdaLNZero(Residual):
  """x ← x + gate ⊙ f((1 + scale) ⊙ norm(x) + shift), for one branch f after another:

    [shift, scale, gate] = W silu(c) + b,  c [D]: the condition of the row

  W and b start from zeros, so that every block starts as the identity (Peebles & Xie 2023, DiT, §3.2,
  adaLN-Zero block; Perez et al. 2018, FiLM). The paper's norm has no scale and bias of its own:
  norm='layernorm(1e-6, bias=False, scale=False)'.

  Raises (from a call):
    ValueError: for a row without a condition.
  """

  placements = ('pre',)
  reads_condition = True

  def __call__(self, block, branches, x, context):
    if context.condition is None:
      raise ValueError(
        "residual='adaln_zero' reads a condition of each row, and the context has none; use a model with "
        "architecture='diffusion'"
      )
    for name, f in branches.items():
      shift, scale, gate = Modulation(3, x.dtype, name=f'{name}_modulation')(context.condition)
      x = x + gate * block.branch(name, lambda y: f(modulate(y, shift, scale)), x, context)
    return x
