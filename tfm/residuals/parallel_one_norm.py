"""Mixer and feed-forward layer side by side, with one norm for both."""

import dataclasses

from tfm.residuals.protocol import Residual


@dataclasses.dataclass(frozen=True)
class ParallelOneNorm(Residual):
  """x + mixer(norm(x)) + feed_forward(norm(x)) (Wang & Komatsuzaki 2021, GPT-J)."""

  placements = ('pre',)
  required_branches = ('mixer', 'feed_forward')

  def __call__(self, block, branches, x, context):
    y = block.norm(name='norm')(x)
    return sum((block.apply_dropout(f(y), context) for f in branches.values()), x)
