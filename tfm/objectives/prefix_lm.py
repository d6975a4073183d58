"""Next-token prediction after a prefix with bidirectional attention."""

import dataclasses

import jax
import jax.numpy as jnp

from tfm.objectives.causal_lm import CausalLM


@dataclasses.dataclass(frozen=True)
class PrefixLM(CausalLM):
  """Σ over the tokens after a document's prefix of -log p(target | prefix, previous tokens)
  (Raffel et al. 2020, §3.2.1; Tay et al. 2022, UL2, "S-denoising").

  The length of the prefix is uniformly random in 0 … n-1 for a document of n tokens; in evaluation it is
  ⌊n/2⌋, so that two evaluations agree. Masks such as `prefix` receive it; the tokens of the prefix are not
  targets.
  """

  mask_fields = frozenset({'prefix'})
  supports_recurrence = False

  def summarize(self, total, size):
    """Without `bits_per_byte`: the size is that of the prefixes, too, which cost nothing."""
    return super().summarize(total, 0)

  def prefix_and_weights(self, batch, key):
    segments = batch['segments']
    rows, length = segments.shape
    tokens = jax.vmap(lambda row: jnp.bincount(row, length=length + 1))(segments)
    fraction = (
      0.5 * jnp.ones(tokens.shape)
      if key is None
      else jax.random.uniform(jax.random.fold_in(key, 1), tokens.shape)
    )
    lengths = jnp.floor(fraction * tokens).astype(jnp.int32)
    prefix = jnp.take_along_axis(lengths, segments, axis=1)
    # The last token of the prefix is the first whose target is not visible.
    counts = (segments > 0) & (batch['positions'] >= prefix - 1)
    return prefix, counts.astype(jnp.float32)
