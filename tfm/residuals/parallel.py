"""Mixer and feed-forward layer side by side, each with its own norm."""

import dataclasses

from tfm.residuals.protocol import Residual


@dataclasses.dataclass(frozen=True)
class Parallel(Residual):
  """x + mixer(norm(x)) + feed_forward(norm'(x)) (Black et al. 2022, GPT-NeoX, §2.1)."""

  placements = ('pre',)
  required_branches = ('mixer', 'feed_forward')

  def __call__(self, block, branches, x, context):
    return sum((block.branch(name, f, x, context) for name, f in branches.items()), x)
