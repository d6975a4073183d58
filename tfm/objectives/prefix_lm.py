"""Next-token prediction after a prefix that is read both ways."""

import dataclasses

import jax
import jax.numpy as jnp

from tfm.objectives.causal_lm import CausalLM


@dataclasses.dataclass(frozen=True)
class PrefixLM(CausalLM):
  """Σ over the tokens after a document's prefix of -log p(target | prefix, what came before)
  (Raffel et al. 2020, §3.2.1; Tay et al. 2022, UL2, "S-denoising").

  The prefix of a document of n tokens has 0 … n-1 of them, all equally likely; in evaluation ⌊n/2⌋, so
  that two evaluations agree. It goes to the masks that ask, such as `prefix`; its own tokens are no targets.
  """

  mask_fields = frozenset({'prefix'})
  supports_recurrence = False

  def given(self, batch, key):
    segments = batch['segments']
    rows, length = segments.shape
    tokens = jax.vmap(lambda row: jnp.bincount(row, length=length + 1))(segments)
    share = (
      0.5 * jnp.ones(tokens.shape)
      if key is None
      else jax.random.uniform(jax.random.fold_in(key, 1), tokens.shape)
    )
    lengths = jnp.floor(share * tokens).astype(jnp.int32)
    prefix = jnp.take_along_axis(lengths, segments, axis=1)
    # The last token of the prefix is the first whose target is not seen.
    counts = (segments > 0) & (batch['positions'] >= prefix - 1)
    return prefix, counts.astype(jnp.float32)
