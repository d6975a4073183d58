"""The feed-forward slot: what a block has besides its mixer.

Every entry of `FEED_FORWARDS` makes a linen module from `width` (D), `hidden` (F), `bias`, `initializer`,
`output_initializer` and `dtype`, besides what its spec says. The module is called with x [B T D] and with
`valid` [B T], which tokens are no padding; `gated` says whether a gate multiplies its hidden layer. 'none' makes
None: the block is its mixer alone (Gu & Dao 2023, Mamba, §3.4).
"""

import functools

import jax.numpy as jnp

from tfm.layers.initializer import normal
from tfm.layers.mixture_of_experts import MixtureOfExperts
from tfm.layers.mlp import FORMS, MLP
from tfm.spec import choose


def none() -> None:
  """No layer."""


FEED_FORWARDS = {
  **{form: functools.partial(MLP, form) for form in FORMS},
  'mixture_of_experts': MixtureOfExperts,
  'none': none,
}


def usual_hidden(text: str, width: int) -> int:
  """F where nothing is said of it: 4 D, or 8/3 D to the next 64 where gated, as a gate is a third
  projection (Shazeer 2020, §3.1); 0 where there is no layer.

  Raises:
    ValueError: if `text` names no feed-forward layer, or one that cannot be.
  """
  layer = choose(
    text,
    FEED_FORWARDS,
    width=width,
    hidden=1,
    bias=False,
    initializer=normal(),
    output_initializer=normal(),
    dtype=jnp.float32,
  )
  if layer is None:
    return 0
  return -(-8 * width // (3 * 64)) * 64 if layer.gated else 4 * width
