"""No feed-forward layer: the block is its mixer alone."""

from tfm.feed_forwards.protocol import FeedForward


class NoFeedForward(FeedForward):
  """The block leaves the branch out (Gu & Dao 2023, Mamba, §3.4)."""

  is_branch = False

  def default_hidden(self):
    return 0
