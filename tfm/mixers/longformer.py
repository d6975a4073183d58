"""Local attention beside global attention, each with projections of its own."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from tfm.mixers._head_projections import project_from_heads, project_to_heads
from tfm.mixers._token_cache import TokenCache
from tfm.mixers.protocol import Mixer
from tfm.spec import SizeOrZero


class Longformer(Mixer):
  """Two attentions under one mask: the queries of global tokens, a document's first, have one set of
  projections, the others another (Beltagy et al. 2020, §3.1, "Linear projections for global attention").

    y_t = attend(W_Qg x_t, W_Kg x, W_Vg x)  where t < global_tokens
          attend(W_Q x_t, W_K x, W_V x)     elsewhere

  Both follow `mask`. The paper's pattern is the mask 'longformer(window,
  global_tokens)' with the same number of global tokens, under 'causal' in a decoder; the other tokens
  attend to global tokens by W_K and W_V, as in the published code.

  With longformer(0) the global tokens, if any, are those of the prefix, t < prefix_t, which the context may
  set for each token (position + 1 makes it global, -1 does not). They attend to all of their document, and
  all of it attends to them.

  Attributes:
    position, score: factories of this layer's own instances, for both attentions.
    mask, kernel: shared, stateless.
    global_tokens: number of global tokens at the start of each document; 0: those of the prefix, in an
      encoder.

  Raises (from `validate`):
    ValueError: for a negative number.
  """

  position: Callable
  score: Callable
  mask: Callable
  kernel: Callable
  global_tokens: SizeOrZero

  examples = ('longformer(2)',)
  position_hooks = frozenset({'rotate', 'bias'})
  exposes_attention = True

  @property
  def is_noncausal(self):
    return self.global_tokens == 0

  @nn.nowrap
  def init_cache(self, batch, length):
    shape = self.kv_heads, self.head_width, self.dtype
    return TokenCache.empty(batch, length, k=shape, v=shape, k_global=shape, v_global=shape)

  @nn.compact
  def __call__(self, x, memory, context, cache):
    self.check_memory(memory)
    position = self.position(name='position')
    score, bias = self.score(name='score')(), position.bias(context.position_tables.get(position.table_key))
    read, keys, layout = {}, context, context.layout
    for kind in ('', '_global'):
      q, k, v = (
        project_to_heads(self, f'{name}{kind}', axis, x)
        for name, axis in (('q', 'heads'), ('k', 'kv_heads'), ('v', 'kv_heads'))
      )
      q, k = position.rotate(q, k, context.positions, context.positions)
      read |= {f'q{kind}': q, f'k{kind}': k, f'v{kind}': v}
    if cache is not None:
      keys = cache = cache.append(context, **read)
      read |= {name: cache[name] for name in cache.arrays}
      layout = 'arbitrary'

    from_prefix, count = not self.global_tokens and context.prefix is not None, self.global_tokens
    # In a row of one document the global tokens are the first ones, so only these need global queries.
    first = x.shape[1] if from_prefix or count and layout != 'contiguous' else min(count, x.shape[1])
    masks = {'': self.mask, '_global': self.mask}
    if from_prefix:
      masks = {'': self.mask.or_prefix(), '_global': self.mask | ~self.mask}  # the latter is always true

    def inputs(kind, queries):
      """The arguments of the kernel for the first queries."""
      return dict(
        score=score,
        mask=masks[kind],
        bias=bias,
        has_blockwise_bias=position.has_blockwise_bias,
        has_relative_bias=position.has_relative_bias,
        q_positions=context.positions[:, :queries],
        k_positions=keys.positions,
        q_segments=context.segments[:, :queries],
        k_segments=keys.segments,
        k_prefix=keys.prefix,
        layout=layout,
        dropout=self.dropout,
      )

    def attend(kind, queries):
      """Attention with one set of projections."""
      with jax.named_scope('kernel'):
        return self.kernel(
          read[f'q{kind}'][:, :queries],
          read[f'k{kind}'],
          read[f'v{kind}'],
          **inputs(kind, queries),
          dropout_key=self.make_rng('dropout') if context.train and self.dropout > 0 else None,
        )

    def weights(compute, kind, queries):
      x = compute(read[f'q{kind}'][:, :queries], read[f'k{kind}'], **inputs(kind, queries))
      return x.swapaxes(1, 2)

    def combine(compute):
      """[B T …]: the result of the global projections for global tokens, and of the others elsewhere."""
      y = compute('', None)
      if not first:
        return y
      top = compute('_global', first)
      is_global = (context.positions < (context.prefix if from_prefix else count))[:, :first, None, None]
      return jnp.concatenate([jnp.where(is_global, top, y[:, :first]), y[:, first:]], 1)

    y = combine(attend)
    self.sow_attention(lambda compute: combine(functools.partial(weights, compute)).swapaxes(1, 2))
    return project_from_heads(self, y), cache
