"""A mixture of experts in which each expert chooses its tokens, of the whole row."""

import math
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge

from tfm.feed_forwards._experts import Experts
from tfm.parallel.sharding import shard
from tfm.shapes import Array, Bool, Float, Int
from tfm.spec import Size, SizeOrZero


class ExpertChoice(Experts):
  """y_t = Σ_i P[t, i] · expert_i(x_t) over the experts i that choose token t (Zhou et al. 2022, §3.2).

  P = softmax over the E experts of x · R, in float32. Each expert takes the ⌈capacity · n / E⌉ tokens with
  the greatest P[·, i] of the n tokens of a row; the first of equal ones. So all experts are equally loaded
  without a loss, and a token goes to any number of them: to `capacity` on average, or to none, when it passes
  through the residual stream alone.

  Which tokens an expert takes depends on all tokens of the row, later ones and those of other documents too,
  and so on what one token alone, as in decoding, would not have beside it: for encoders, and rows of one
  document. Padding is not chosen and does not count. In 'metrics': 'unchosen', the share of tokens that no
  expert takes.

  Attributes:
    width: D; hidden: F of one expert.
    bias, initializer, output_initializer, dtype: of the experts' projections; the router has no bias.
    experts: E; activation: of an expert, the name of an MLP of this folder.
    capacity: the number of experts that a token goes to on average; 2 in the paper.
    shared: experts that every token goes to, together one MLP of `shared` · F.

  Raises (from `validate`):
    ValueError: for an unknown activation, or a capacity beyond the number of experts.
  """

  examples = (
    'expert_choice(experts=4)',
    'expert_choice(experts=3, activation="gelu", capacity=1.25, shared=1)',
  )
  reads_other_tokens = True

  experts: Size = 8
  capacity: Annotated[float, Ge(0.1)] = 2.0
  activation: str = 'swiglu'
  shared: SizeOrZero = 0

  def validate(self):
    self.expert  # raises for an unknown activation
    if self.capacity > self.experts:
      raise ValueError(
        f'capacity={self.capacity} lets an expert choose more tokens than there are; '
        f'use at most experts={self.experts}'
      )

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D'], valid: Bool[Array, 'B T']) -> Float[Array, 'B T D']:
    (B, T, D), E = x.shape, self.experts
    P = jax.nn.softmax(self.route(x))
    # How many tokens an expert takes of a row of n, exactly.
    sizes = np.array([math.ceil(self.capacity * n / E) for n in range(T + 1)])
    C = int(sizes[-1])
    order = jnp.argsort(jnp.where(valid[..., None], -P, jnp.inf), 1, stable=True)[:, :C]
    is_taken = jnp.arange(C)[None] < jnp.asarray(sizes)[valid.sum(1)][:, None]
    taken = jnp.where(is_taken[..., None], order, T).swapaxes(1, 2).reshape(B, E * C)
    weights = jnp.take_along_axis(P, order, 1).swapaxes(1, 2).reshape(B, E * C)
    self.report(taken, valid)
    rows = jax.vmap(lambda x, taken: x.at[taken].get(mode='fill', fill_value=0))
    rows = rows(shard(x.astype(self.dtype), 'batch', None, 'embed'), taken).reshape(B, E, C, D)
    y = self.apply_to_slots(shard(rows, 'batch', None, None, 'embed'))
    y = shard(y, 'batch', None, None, 'embed').reshape(B, E * C, D).astype(jnp.float32) * weights[..., None]
    add = jax.vmap(lambda y, taken: jnp.zeros((T, D), y.dtype).at[taken].add(y, mode='drop'))
    y = add(y, taken).astype(self.dtype)
    return shard(self.add_shared(y, x, valid), 'batch', 'length', 'embed')

  def report(self, taken: Int[Array, 'B M'], valid: Bool[Array, 'B T']) -> None:
    """The share of tokens that no expert takes."""
    T = valid.shape[1]
    chosen = jax.vmap(lambda taken: jnp.zeros(T, bool).at[taken].set(True, mode='drop'))(taken)
    self.sow_scalar('metrics', 'unchosen', (valid & ~chosen).sum() / jnp.maximum(valid.sum(), 1))
