"""Learned absolute positions."""

import flax.linen as nn
import jax.numpy as jnp

from tfm.layers.initializer import normal
from tfm.parallel.sharding import shard, with_logical_axes
from tfm.positions._table import TablePosition
from tfm.spec import NonNegativeFloat, SizeOrZero


class Learned(TablePosition):
  """x + W[position], with W learned (Gehring et al. 2017; GPT-2, BERT).

  Attributes:
    rows: positions in the table; default: the length of the training sequences.
    stddev: of the normal distribution that the table starts from (0.02 in GPT-2 and BERT).
    before: additional rows at the start of the table, the last of which is position -1, as in the published
      RoBERTa, whose positions start after the padding id, which is the position of padding (Liu et al. 2019,
      released code).

  Raises (from `validate`):
    ValueError: for a table shorter than the sequences, or a negative `before`.
  """

  stddev: NonNegativeFloat = 0.02
  before: SizeOrZero = 0

  examples = ('learned', 'learned(before=2)')

  def fingerprint(self):
    return super().fingerprint() | dict(stddev=None)

  @nn.compact
  def embed(self, x, positions):
    table = self.param(
      'table',
      with_logical_axes(normal(self.stddev)((0,), (1,)), ('table', 'embed')),
      (self.before + self.max_positions, self.width),
      jnp.float32,
    )
    return x + shard(table[positions + self.before].astype(x.dtype), 'batch', 'length', 'embed')
